{{- define "treeswap.labels" -}}
app.kubernetes.io/name: treeswap
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "treeswap.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The options as arguments, in the order of their names. JSON, because Helm reads numbers as floats and would print
67108864 as 6.7108864e+07. */}}
{{- define "treeswap.options" -}}
{{- $_ := required "options.repo: the repository to follow" .Values.options.repo -}}
{{- include "treeswap.arguments" .Values.options }}
{{- end }}

{{- define "treeswap.arguments" -}}
{{- range $name, $value := . }}
{{- range (kindIs "slice" $value | ternary $value (list $value)) }}
- {{ printf "--%s=%s" $name (kindIs "string" . | ternary . (toJson .)) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "treeswap.credentials.mount" -}}
{{- if .Values.credentialsSecret }}
- {name: treeswap-credentials, mountPath: /etc/treeswap, readOnly: true}
{{- end }}
{{- end }}

{{- define "treeswap.credentials.volume" -}}
{{- if .Values.credentialsSecret }}
- name: treeswap-credentials
  secret:
    secretName: {{ .Values.credentialsSecret }}
    defaultMode: 0444 # mounted into treeswap's container alone, which is in no group of the Pod
{{- end }}
{{- end }}

{{- define "treeswap.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
{{ include "treeswap.confinement" . }}
{{- end }}

{{- define "treeswap.confinement" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Succeeds once a revision is published; what it prints until then is in the Pod's events. */}}
{{- define "treeswap.probes" -}}
ports:
  - {name: treeswap, containerPort: 9375}
startupProbe:
  exec: {command: [/treeswap, status, /config]}
  periodSeconds: 1
  timeoutSeconds: 10
  failureThreshold: 600
livenessProbe:
  httpGet: {path: /livez, port: treeswap}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
  {{- toYaml .Values.resources | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: config, mountPath: /config}
  {{- include "treeswap.credentials.mount" . | trim | nindent 2 }}
{{- end }}
