{{- /* For other charts: an entry of initContainers. The application starts once the startup probe succeeds. */}}
{{- define "treeswap.sidecar" -}}
{{- if .Values.options.owner }}
{{- fail "options.owner: the sidecar's volume and account are not for ConfigMaps: make them in a Pod of their own (configMaps)" }}
{{- end }}
{{- $limits := dict "max-bytes" (include "treeswap.part" (list .Values.sidecar.sizeLimit 512 1)) }}
{{- $ofOne := include "treeswap.part" (list .Values.sidecar.sizeLimit 128 (include "treeswap.repositories" .)) }}
{{- $_ := merge $limits (dict "max-mirror-bytes" $ofOne "max-fetch-bytes" $ofOne) }}
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

{{- /* So many 1024ths of a size for each of some, in the next smaller unit: (list "2Gi" 512 1) is 1024Mi. */}}
{{- define "treeswap.part" -}}
{{- $unit := regexFind "[A-Z]" (index . 0) -}}
{{- div (mul (index . 1) (regexFind "^[0-9]+" (index . 0) | int64)) (index . 2 | int64) }}{{ get (dict "K" "" "M" "Ki" "G" "Mi" "T" "Gi") $unit }}
{{- end }}

{{- /* How many repositories are followed, each of which has a mirror: as many as there are pairs of URL and credentials.
Of a list of your own (options.sources) that is not known. */}}
{{- define "treeswap.repositories" -}}
{{- $repositories := list }}
{{- range (default "" .Values.sources | fromYaml).sources }}
{{- $repositories = append $repositories (printf "%s %s" .repo (toJson .credentials)) | uniq }}
{{- end }}
{{- max 1 (len $repositories) }}
{{- end }}

{{- define "treeswap.kibibytes" -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get (dict "K" 1 "M" 1024 "G" 1048576 "T" 1073741824) (regexFind "[A-Z]" .)) }}
{{- end }}

{{- /* Fails where a volume in memory would get the container killed. */}}
{{- define "treeswap.fits" -}}
{{- $memory := dig "limits" "memory" "" .Values.resources | toString }}
{{- if regexMatch "^[0-9]+[KMGT]i$" $memory }}
{{- if lt (include "treeswap.kibibytes" $memory | int64) (add 131072 (include "treeswap.kibibytes" .Values.sidecar.sizeLimit | int64)) }}
{{- fail (printf "sidecar.medium Memory: the volume's %s count as the container's memory, whose limit is %s: set resources.limits.memory to sidecar.sizeLimit and 128Mi more" .Values.sidecar.sizeLimit $memory) }}
{{- end }}
{{- end }}
{{- end }}
