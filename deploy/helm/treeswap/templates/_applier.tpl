{{- /* What the Pod that applies ConfigMaps has in common, whatever starts it. */}}
{{- define "treeswap.applier" -}}
{{- with .Values.configMaps }}
{{- $given := dict "repo" (required "options.repo: the repository to follow" $.Values.options.repo) "ref" $.Values.options.ref "default-namespace" $.Release.Namespace }}
{{- $_ := required "configMaps.options.owner: the name of this installation, for good" .options.owner }}
{{- if not (or .options.rules (get .options "rules-in-tree")) }}
{{- fail "configMaps.options.rules-in-tree: the file of the repository that has the rules" }}
{{- end }}
{{- if .kubeconfigsSecret }}
{{- $_ := set $given "kubeconfig-dir" "/etc/kubeconfigs" }}
{{- end }}
{{- if eq .mode "CronJob" }}
{{- $_ := set $given "timeout" "8m" }}
{{- end }}
enableServiceLinks: false
serviceAccountName: {{ $.Release.Name }}-apply
{{- with $.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: treeswap
    {{- include "treeswap.image" $ | nindent 4 }}
    args:
      - {{ eq .mode "CronJob" | ternary "apply" "sync" }}
      {{- if eq .mode "Deployment" }}
      - --http-bind=:9375
      {{- end }}
      {{- include "treeswap.arguments" (merge dict .options $given) | trim | nindent 6 }}
    env:
      - {name: TMPDIR, value: /scratch}
    {{- if eq .mode "Deployment" }}
    ports:
      - {name: treeswap, containerPort: 9375}
    # No readiness: nobody is sent here, and a target that cannot be written must not hold a rollout up.
    startupProbe:
      httpGet: {path: /livez, port: treeswap}
      periodSeconds: 2
      timeoutSeconds: 5
      failureThreshold: 30
    livenessProbe:
      httpGet: {path: /livez, port: treeswap}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 3
    {{- end }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      {{- include "treeswap.securityContext" $ | nindent 6 }}
    volumeMounts:
      - {name: scratch, mountPath: /scratch}
      {{- if .kubeconfigsSecret }}
      - {name: kubeconfigs, mountPath: /etc/kubeconfigs, readOnly: true}
      {{- end }}
      {{- include "treeswap.credentials.mount" $ | trim | nindent 6 }}
volumes:
  - name: scratch
    emptyDir: {sizeLimit: 1Gi}
  {{- if .kubeconfigsSecret }}
  - name: kubeconfigs
    secret:
      secretName: {{ .kubeconfigsSecret }}
      defaultMode: 0444
  {{- end }}
  {{- include "treeswap.credentials.volume" $ | nindent 2 }}
{{- end }}
{{- end }}
