{{- /* Those of the options that are credentials. */}}
{{- define "treeswap.credentials" -}}
{{- pick . "username" "password-file" "credential" "askpass-url" "cookie-file" "github-base-url" "github-app-application-id" "github-app-client-id" "github-app-installation-id" "github-app-private-key-file" "ssh-key-file" "ssh-known-hosts" "ssh-known-hosts-file" | toJson }}
{{- end }}

{{- /* What the ConfigMaps are made of, for people. */}}
{{- define "treeswap.whatIsApplied" -}}
{{- $own := .Values.configMaps.options }}
{{- if $own.sources }}
{{- printf "what %s lists (configMaps.options.sources)" $own.sources }}
{{- else if $own.repo }}
{{- printf "%s (%s)" $own.repo (default "HEAD" $own.ref) }}
{{- else if and $own.ref .Values.options.repo }}
{{- printf "%s (%s)" .Values.options.repo $own.ref }}
{{- else }}
{{- include "treeswap.whatIsFollowed" . }}
{{- end }}
{{- end }}

{{- /* What the Pod that applies ConfigMaps has in common, whatever starts it. */}}
{{- define "treeswap.applier" -}}
{{- with .Values.configMaps }}
{{- $given := dict "default-namespace" $.Release.Namespace "log-format" "json" }}
{{- /* With a repository or sources of its own, it gets neither the ref of the options, which is of another repository,
nor their credentials, which would be sent to another server. */}}
{{- if not (or .options.repo .options.sources) }}
{{- $followed := include "treeswap.followed" $ | fromJson }}
{{- $given = merge $given (pick $followed "repo" "ref" "sources" "ca-file") }}
{{- if eq (include "treeswap.credentials" .options) "{}" }}
{{- $given = merge $given (include "treeswap.credentials" $followed | fromJson) }}
{{- end }}
{{- end }}
{{- $_ := required "configMaps.options.owner: the name of this installation, for good" .options.owner }}
{{- if not (or .options.rules (get .options "rules-in-tree")) }}
{{- fail "configMaps.options.rules-in-tree: the file of the repository that has the rules" }}
{{- end }}
{{- if .kubeconfigsSecret }}
{{- $_ := set $given "kubeconfig-dir" "/etc/kubeconfigs" }}
{{- end }}
{{- with .leasePool }}
{{- $_ := set $given "lease-pool" . }}
{{- end }}
{{- $webhook := eq .mode "Deployment" | ternary .webhookSecret "" }}
{{- if $webhook }}
{{- $_ := set $given "webhook-secret-file" "/etc/webhook/secret" }}
{{- end }}
{{- $ofOne := include "treeswap.part" (list .sizeLimit 200 (include "treeswap.repositories" $)) }}
{{- $_ := set $given "max-fetch-bytes" $ofOne }}
{{- if eq .mode "CronJob" }}
{{- $_ := set $given "timeout" "8m" }}
{{- else }}
{{- $_ := set $given "max-mirror-bytes" $ofOne }}
{{- end }}
{{- $mounts := dict "kubeconfigs" (list .kubeconfigsSecret "/etc/kubeconfigs") "rules" (list .rulesConfigMap "/etc/rules") "webhook" (list $webhook "/etc/webhook") }}
enableServiceLinks: false
serviceAccountName: {{ printf "%s-apply" (include "treeswap.name" $) | quote }}
{{- include "treeswap.placement" (list $ .) }}
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
      {{- include "treeswap.env" $ | nindent 6 }}
    {{- if eq .mode "Deployment" }}
    ports:
      - {name: treeswap, containerPort: 9375}
    # No readiness: nobody is sent here but webhooks, and a target that cannot be written must not hold a rollout up.
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
      {{- range $name, $of := $mounts }}
      {{- if index $of 0 }}
      - {name: {{ $name }}, mountPath: {{ index $of 1 }}, readOnly: true}
      {{- end }}
      {{- end }}
      {{- include "treeswap.mounts" $ | nindent 6 }}
volumes:
  - name: scratch
    emptyDir: {sizeLimit: {{ .sizeLimit | quote }}}
  {{- range $name, $of := omit $mounts "rules" }}
  {{- with index $of 0 }}
  - name: {{ $name }}
    secret: {secretName: {{ . | quote }}, defaultMode: 0444}
  {{- end }}
  {{- end }}
  {{- with .rulesConfigMap }}
  - name: rules
    configMap: {name: {{ . | quote }}}
  {{- end }}
  {{- include "treeswap.mounted" $ | nindent 2 }}
{{- end }}
{{- end }}
