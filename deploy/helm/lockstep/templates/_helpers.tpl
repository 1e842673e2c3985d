{{- /*
SPDX-License-Identifier: Apache-2.0
*/ -}}
{{- /* An image by its digest, or else by its tag. */ -}}
{{- define "lockstep.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}

{{- /* The flags of the daemon, as its environment. */ -}}
{{- define "lockstep.coordinatorEnvironment" -}}
{{- $ours := dict
  "LOCKSTEP_COORDINATOR_LISTEN" "0.0.0.0:50051"
  "LOCKSTEP_COORDINATOR_HTTP" "0.0.0.0:8080"
  "LOCKSTEP_COORDINATOR_TLS_DIR" "/etc/lockstep/tls"
  "LOCKSTEP_COORDINATOR_HTTP_TOKEN_FILE" "/etc/lockstep/token/token"
  "LOCKSTEP_COORDINATOR_DRAIN_MS" "20000" -}}
{{ toYaml (merge (deepCopy .Values.environment) $ours) }}
{{- end -}}

{{- /* The name of the ConfigMap ends with a hash of the content, so that a change rolls the coordinator. */ -}}
{{- define "lockstep.coordinatorConfig" -}}
lockstep-coordinator-{{ include "lockstep.coordinatorEnvironment" . | sha256sum | trunc 10 }}
{{- end -}}
