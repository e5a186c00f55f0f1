{{/* Settings of the control planes, as a ConfigMap has them. */}}
{{- define "diffuserve.settings" -}}
{{- $address := dict "DIFFUSERVE_PUBLIC_API_URL" (printf "https://%s" .Values.host) -}}
{{- range $name, $value := merge (dict) .Values.settings $address }}
{{ $name }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}

{{/* The sets of workers, each with what it has of its own and the defaults for the rest. */}}
{{- define "diffuserve.workers" -}}
{{- $workers := list -}}
{{- $names := list -}}
{{- range .Values.workers -}}
{{- $worker := merge (dict) . (dict "name" "worker") -}}
{{- range $name, $value := $.Values.workerDefaults -}}
{{- if not (hasKey $worker $name) -}}{{- $_ := set $worker $name $value -}}{{- end -}}
{{- end -}}
{{- if has $worker.name $names -}}{{- fail (printf "workers: two entries are named %q: give each a name" $worker.name) -}}{{- end -}}
{{- $names = append $names $worker.name -}}
{{- $workers = append $workers $worker -}}
{{- end -}}
{{- toYaml $workers -}}
{{- end }}

{{/* The id by which clients name the model of a set of workers: the last part of a folder, a name without its hash. */}}
{{- define "diffuserve.modelId" -}}
{{- .modelId | default (.model | base | splitList "@" | first) -}}
{{- end }}

{{/* Whether a set of workers is on spot machines, or is started by a ScaledJob: nothing if none is. */}}
{{- define "diffuserve.hasSpot" -}}
{{- range include "diffuserve.workers" . | fromYamlArray }}{{ if .spot }}true{{ end }}{{ end -}}
{{- end }}
{{- define "diffuserve.hasScaledJob" -}}
{{- range include "diffuserve.workers" . | fromYamlArray }}{{ if eq .autoscaler "scaledjob" }}true{{ end }}{{ end -}}
{{- end }}
