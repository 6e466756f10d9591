{{- /* A Role in a namespace, and who has it: (list $ SUFFIX NAMESPACE RULES). */}}
{{- define "treeswap.role" -}}
{{- $ := index . 0 -}}
{{- $metadata := include "treeswap.metadata" (list $ (index . 1)) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- $metadata | nindent 2 }}
  namespace: {{ index . 2 | quote }}
rules:
  {{- toYaml (index . 3) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- $metadata | nindent 2 }}
  namespace: {{ index . 2 | quote }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ printf "%s%s" (include "treeswap.name" $) (index . 1) | quote }}
subjects:
  {{- include "treeswap.subject" $ | nindent 2 }}
{{- end }}

{{- define "treeswap.subject" -}}
- kind: ServiceAccount
  name: {{ printf "%s-apply" (include "treeswap.name" .) | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end }}
