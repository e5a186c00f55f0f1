{{/* Settings of the control planes, as a ConfigMap has them; secrets, which it would show, are refused. */}}
{{- define "diffuserve.settings" -}}
{{- $address := dict "DIFFUSERVE_PUBLIC_API_URL" (printf "https://%s" .Values.host) -}}
{{- range $name, $value := merge (dict) .Values.settings $address }}
{{- if or (regexMatch "(KEY|KEY_ID|SECRET|PASSWORD|TOKEN)$|^DIFFUSERVE_DATABASE_URL$" $name) (regexMatch "://[^/@\\s]*:[^/@\\s]+@" (toString $value)) -}}
{{- fail (printf "settings: %s is or has a secret, and settings are written into a ConfigMap: put it into the Secret %q (control.secret), whose variables control planes have, too" $name $.Values.control.secret) -}}
{{- end }}
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
{{- if and $.Values.models.claim (not (include "diffuserve.hasModels" $worker)) -}}{{- fail (printf "workers: the args of %q name no --model-volume, so that the volume %q is not read: args of one's own replace those of workerDefaults; put what you add into extraArgs, or --model-volume into args" $worker.name $.Values.models.claim) -}}{{- end -}}
{{- with include "diffuserve.fault" $worker }}{{ fail (printf "workers: %s" .) }}{{ end -}}
{{- $workers = append $workers $worker -}}
{{- end -}}
{{- toYaml $workers -}}
{{- end }}

{{/* What a cluster would refuse of a set of workers, or what would cost it its jobs: nothing if all is well. */}}
{{- define "diffuserve.fault" -}}
{{- $drain := 0 -}}
{{- $before := "" -}}
{{- range concat (.args | default list) (.extraArgs | default list) -}}
{{- if eq $before "--drain-seconds" }}{{ $drain = int (toString .) }}{{ end -}}
{{- if hasPrefix "--drain-seconds=" (toString .) }}{{ $drain = int (trimPrefix "--drain-seconds=" (toString .)) }}{{ end -}}
{{- $before = toString . -}}
{{- end -}}
{{- if eq .name "control" -}}
"control" is the name of the control planes: give the set another
{{- else if le (int .terminationGracePeriodSeconds) $drain -}}
terminationGracePeriodSeconds of {{ quote .name }} is {{ int .terminationGracePeriodSeconds }}, and its --drain-seconds {{ $drain }}: it would be killed with its jobs; give more seconds, or drain for fewer
{{- else if not (or (kindIs "invalid" .minReplicas) (kindIs "invalid" .maxReplicas)) -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
minReplicas of {{ quote .name }} is {{ int .minReplicas }}, and maxReplicas {{ int .maxReplicas }}: give fewer, or more
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether a set of workers is told where its models are: nothing if it is not. */}}
{{- define "diffuserve.hasModels" -}}
{{- range concat (.args | default list) (.extraArgs | default list) }}{{ if regexMatch "^--model-(volume|store)(=|$)" (toString .) }}true{{ end }}{{ end -}}
{{- range .env }}{{ if has .name (list "DIFFUSERVE_MODEL_VOLUME" "DIFFUSERVE_MODEL_STORE") }}true{{ end }}{{ end -}}
{{- end }}

{{/* The id by which clients name the model of a set of workers: the last part of a folder, a name without its hash. */}}
{{- define "diffuserve.modelId" -}}
{{- .modelId | default (.model | base | splitList "@" | first) -}}
{{- end }}

{{/* Floors with which each model has a first worker, as JSON: nothing if those of the settings are enough.
     A model that a set of workers without a ScaledJob offers needs none. */}}
{{- define "diffuserve.missingFloors" -}}
{{- $floors := .Values.settings.DIFFUSERVE_SCALE_FLOORS | default dict -}}
{{- if kindIs "string" $floors }}{{ $floors = fromJson $floors }}{{ end -}}
{{- $offered := list -}}
{{- $missing := dict -}}
{{- $workers := include "diffuserve.workers" . | fromYamlArray -}}
{{- range $workers }}{{ if ne .autoscaler "scaledjob" }}{{ $offered = append $offered (include "diffuserve.modelId" .) }}{{ end }}{{ end -}}
{{- range $workers -}}
{{- $id := include "diffuserve.modelId" . -}}
{{- if not (or (has $id $offered) (hasKey $floors $id)) }}{{ $_ := set $missing $id (list (dict "workers" 1)) }}{{ end -}}
{{- end -}}
{{- if $missing }}{{ merge $missing $floors | toJson }}{{ end -}}
{{- end }}

{{/* Whether a set of workers is on spot machines, or is started by a ScaledJob: nothing if none is. */}}
{{- define "diffuserve.hasSpot" -}}
{{- range include "diffuserve.workers" . | fromYamlArray }}{{ if .spot }}true{{ end }}{{ end -}}
{{- end }}
{{- define "diffuserve.hasScaledJob" -}}
{{- range include "diffuserve.workers" . | fromYamlArray }}{{ if eq .autoscaler "scaledjob" }}true{{ end }}{{ end -}}
{{- end }}
