{{- /* For other charts: an entry of initContainers. The application starts once the startup probe succeeds. */}}
{{- define "treeswap.sidecar" -}}
- name: treeswap
  {{- include "treeswap.image" . | nindent 2 }}
  restartPolicy: Always
  args:
    - sync
    - --root=/config
    - --http-bind=:9375
    {{- include "treeswap.options" . | trim | nindent 4 }}
  {{- include "treeswap.probes" . | nindent 2 }}
  securityContext:
    {{- include "treeswap.securityContext" . | nindent 4 }}
{{- end }}

{{- /* For other charts: entries of volumes. */}}
{{- define "treeswap.volumes" -}}
- name: config
  emptyDir:
    sizeLimit: {{ .Values.sidecar.sizeLimit }}
    {{- with .Values.sidecar.medium }}
    medium: {{ . }}
    {{- end }}
{{- include "treeswap.credentials.volume" . }}
{{- end }}
