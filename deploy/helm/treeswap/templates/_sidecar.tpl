{{- /* For other charts: an entry of initContainers. The application starts once the startup probe succeeds. */}}
{{- define "treeswap.sidecar" -}}
{{- $limits := dict "max-bytes" (include "treeswap.part" (list .Values.sidecar.sizeLimit 768)) }}
{{- range list "max-mirror-bytes" "max-fetch-bytes" }}
{{- $_ := set $limits . (include "treeswap.part" (list $.Values.sidecar.sizeLimit 256)) }}
{{- end }}
{{- if eq .Values.sidecar.medium "Memory" }}
{{- include "treeswap.fits" . }}
{{- $_ := set $limits "durability" "none" }}
{{- end -}}
- name: treeswap
  {{- include "treeswap.image" . | nindent 2 }}
  restartPolicy: Always
  args:
    - sync
    - --root=/config
    - --http-bind=:9375
    {{- include "treeswap.arguments" (merge (include "treeswap.followed" . | fromJson) $limits) | trim | nindent 4 }}
  {{- include "treeswap.keeper" . | nindent 2 }}
  securityContext:
    {{- include "treeswap.securityContext" . | nindent 4 }}
{{- end }}

{{- /* For other charts: entries of volumes. */}}
{{- define "treeswap.volumes" -}}
- name: config
  emptyDir:
    sizeLimit: {{ .Values.sidecar.sizeLimit | quote }}
    {{- with .Values.sidecar.medium }}
    medium: {{ . }}
    {{- end }}
{{- include "treeswap.mounted" . }}
{{- end }}

{{- /* So many 1024ths of a size, in the next smaller unit: (list "2Gi" 768) is 1536Mi. */}}
{{- define "treeswap.part" -}}
{{- $unit := regexFind "[A-Z]" (index . 0) -}}
{{- mul (index . 1) (regexFind "^[0-9]+" (index . 0) | int64) }}{{ get (dict "K" "" "M" "Ki" "G" "Mi" "T" "Gi") $unit }}
{{- end }}

{{- define "treeswap.kibibytes" -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get (dict "K" 1 "M" 1024 "G" 1048576 "T" 1073741824) (regexFind "[A-Z]" .)) }}
{{- end }}

{{- /* Fails where a volume in memory would get the container killed. */}}
{{- define "treeswap.fits" -}}
{{- $memory := dig "limits" "memory" "" .Values.resources | toString }}
{{- if regexMatch "^[0-9]+[KMGT]i$" $memory }}
{{- if lt (include "treeswap.kibibytes" $memory | int64) (include "treeswap.kibibytes" .Values.sidecar.sizeLimit | int64) }}
{{- fail (printf "sidecar.medium Memory: the volume's %s count as the container's memory, whose limit is %s: set resources.limits.memory to sidecar.sizeLimit and 128Mi" .Values.sidecar.sizeLimit $memory) }}
{{- end }}
{{- end }}
{{- end }}
