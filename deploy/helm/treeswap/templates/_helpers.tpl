{{- /* Whatever somebody else chose is quoted: `n`, `on` and `123` are names. */}}

{{- /* What the names of objects begin with. A CronJob's has at most 52 characters, the longest suffix 8. A release's name
may have dots, a Service's may not. */}}
{{- define "treeswap.name" -}}
{{- default .Release.Name .Values.nameOverride | replace "." "-" | trunc 44 | trimAll "-" }}
{{- end }}

{{- /* (list $ SUFFIX) */}}
{{- define "treeswap.metadata" -}}
{{- $ := index . 0 -}}
name: {{ printf "%s%s" (include "treeswap.name" $) (index . 1) | quote }}
labels:
  {{- include "treeswap.labels" $ | nindent 2 }}
{{- end }}

{{- define "treeswap.sourcesMap" -}}
{{- printf "%s-sources" (include "treeswap.name" .) }}
{{- end }}

{{- define "treeswap.labels" -}}
{{- include "treeswap.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "treeswap.selector" -}}
app.kubernetes.io/name: treeswap
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Of a Pod: (list $ COMPONENT VOLUME). Our labels win over podLabels, for others select by them. */}}
{{- define "treeswap.pod" -}}
{{- $ := index . 0 -}}
labels:
  {{- $own := merge (include "treeswap.labels" $ | fromYaml) (dict "app.kubernetes.io/component" (index . 1)) }}
  {{- merge $own $.Values.podLabels | toYaml | nindent 2 }}
annotations:
  {{- include "treeswap.annotations" (list $ (index . 2)) | nindent 2 }}
{{- end }}

{{- /* Of a Pod: (list $ VOLUME). An emptyDir keeps the cluster autoscaler from removing a node, unless it is named so;
ours is filled again wherever the Pod comes up. */}}
{{- define "treeswap.annotations" -}}
{{- $own := dict }}
{{- with index . 1 }}
{{- $_ := set $own "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" . }}
{{- end }}
{{- merge (deepCopy (index . 0).Values.podAnnotations) $own | toYaml }}
{{- end }}

{{- /* Where Pods run: (list $ VALUES). */}}
{{- define "treeswap.placement" -}}
{{- $all := dict "imagePullSecrets" (index . 0).Values.imagePullSecrets }}
{{- $_ := merge $all (pick (index . 1) "nodeSelector" "affinity" "tolerations") }}
{{- range $name, $value := $all }}
{{- with $value }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "treeswap.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The end of the names of an owner's objects, as the program derives it (docs/reference/digests.md): a DNS label is
used as it is. */}}
{{- define "treeswap.ownerLabel" -}}
{{- if and (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" .) (le (len .) 63) }}
{{- . }}
{{- else }}
{{- $readable := regexReplaceAll "[^A-Za-z0-9]" . "" | lower | trunc 32 }}
{{- printf "%s-%s" (default "x" $readable) (sha256sum . | trunc 20) }}
{{- end }}
{{- end }}

{{- define "treeswap.options" -}}
{{- include "treeswap.arguments" (include "treeswap.followed" . | fromJson) }}
{{- end }}

{{- /* The options, with what is followed. A file that lists sources, ours or one of your own, takes the place of a
repository. */}}
{{- define "treeswap.followed" -}}
{{- $options := .Values.options }}
{{- if .Values.sources }}
{{- if .Values.options.repo }}
{{- fail "sources and options.repo exclude each other: name the repository in sources" }}
{{- end }}
{{- $options = merge (dict "sources" "/etc/sources/sources.yaml") $options }}
{{- end }}
{{- if $options.sources }}
{{- $options = omit $options "repo" "ref" }}
{{- else }}
{{- $_ := required "options.repo: the repository to follow, or sources" $options.repo }}
{{- end }}
{{- toJson $options }}
{{- end }}

{{- /* What is followed, for people: the repository and its ref, or where several are listed. */}}
{{- define "treeswap.whatIsFollowed" -}}
{{- $options := include "treeswap.followed" . | fromJson }}
{{- if .Values.sources }}
{{- printf "what the ConfigMap %s lists (sources)" (include "treeswap.sourcesMap" .) }}
{{- else if $options.sources }}
{{- printf "what %s lists (options.sources)" $options.sources }}
{{- else }}
{{- printf "%s (%s)" $options.repo (default "HEAD" $options.ref) }}
{{- end }}
{{- end }}

{{- /* The options as arguments, in the order of their names. JSON, because Helm reads numbers as floats and would print
67108864 as 6.7108864e+07. */}}
{{- define "treeswap.arguments" -}}
{{- range $name, $value := . }}
{{- range (kindIs "slice" $value | ternary $value (list $value)) }}
- {{ printf "--%s=%s" $name (kindIs "string" . | ternary . (toJson .)) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A boolean as the program reads it, for values may be text: empty, or not. */}}
{{- define "treeswap.is" -}}
{{- if has (toString .) (list "1" "t" "T" "true" "TRUE" "True") }}true{{ end }}
{{- end }}

{{- define "treeswap.env" -}}
{{- with .Values.extraEnv }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "treeswap.mounts" -}}
{{- if .Values.credentialsSecret }}
- {name: treeswap-credentials, mountPath: /etc/treeswap, readOnly: true}
{{- end }}
{{- if .Values.sources }}
- {name: treeswap-sources, mountPath: /etc/sources, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What the mounts are of. Secrets are readable by all in treeswap's container, which is in no group of the Pod, and
mounted there alone. */}}
{{- define "treeswap.mounted" -}}
{{- with .Values.credentialsSecret }}
- name: treeswap-credentials
  secret: {secretName: {{ . | quote }}, defaultMode: 0444}
{{- end }}
{{- if .Values.sources }}
- name: treeswap-sources
  configMap: {name: {{ include "treeswap.sourcesMap" . | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
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

{{- /* What keeps a root all the time. The startup probe succeeds once a revision is published; what it prints until then
is in the Pod's events, of which the kubelet sends 25 at once, then one every five minutes. After an hour the kubelet
restarts the container, which ends an attempt that is running. */}}
{{- define "treeswap.keeper" -}}
{{- with include "treeswap.env" . }}
env:
  {{- . | nindent 2 }}
{{- end }}
ports:
  - {name: treeswap, containerPort: 9375}
startupProbe:
  exec: {command: [/treeswap, status, /config]}
  periodSeconds: 2
  timeoutSeconds: 10
  failureThreshold: 1800
livenessProbe:
  httpGet: {path: /livez, port: treeswap}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
# What is published keeps the Pod ready through an outage of the remote, unless max-stale says otherwise.
readinessProbe:
  httpGet: {path: /readyz, port: treeswap}
  periodSeconds: 10
  timeoutSeconds: 5
resources:
  {{- toYaml .Values.resources | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: config, mountPath: /config}
  {{- include "treeswap.mounts" . | nindent 2 }}
{{- end }}
