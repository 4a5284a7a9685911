{{/* Base of all names. */}}
{{- define "ironlb.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 33 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* Base of the names of objects without a namespace. Releases of the same name in other namespaces do not share them. */}}
{{- define "ironlb.clustername" -}}
{{- $name := include "ironlb.fullname" . -}}
{{- if eq .Release.Namespace (printf "%s-system" $name) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace $name -}}
{{- end -}}
{{- end -}}

{{/* Labels of a Pod and its selector: they never change between versions. Arguments: context, component. */}}
{{- define "ironlb.selector" -}}
app.kubernetes.io/name: ironlb-{{ .component }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of a Pod template: without a version, so that a new chart alone restarts no Pod. */}}
{{- define "ironlb.podlabels" -}}
{{ include "ironlb.selector" . }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: ironlb
{{- end -}}

{{/* Labels of an object. */}}
{{- define "ironlb.labels" -}}
{{ include "ironlb.podlabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of objects that belong to no single program. */}}
{{- define "ironlb.sharedlabels" -}}
app.kubernetes.io/name: ironlb
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: ironlb
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Image reference. Arguments: context, image. */}}
{{- define "ironlb.image" -}}
{{- $name := printf "%s/%s" (.Values.image.registry | trimSuffix "/") .image.name -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Entries of imagePullSecrets. */}}
{{- define "ironlb.pullsecrets" -}}
{{- range $i, $name := . }}{{ if $i }}
{{ end }}- name: {{ $name }}{{ end -}}
{{- end -}}

{{/* Environment that replaces the kubelet's address of the API server. */}}
{{- define "ironlb.apiserver" -}}
{{- if .Values.apiServer.host -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.apiServer.port | int | quote }}
{{- end -}}
{{- end -}}

{{/* Namespace of the passwords of BGPPeers. */}}
{{- define "ironlb.passwords" -}}
{{- printf "%s-bgp" (include "ironlb.clustername" .) -}}
{{- end -}}

{{- define "ironlb.keysecret" -}}
{{- .Values.speaker.key.existingSecret | default (printf "%s-speaker-keys" (include "ironlb.fullname" .)) -}}
{{- end -}}

{{/* Port of the speakers for metrics and probes. */}}
{{- define "ironlb.metricsport" -}}
{{- splitList ":" .Values.speaker.metricsBindAddress | last -}}
{{- end -}}

{{/* The speaker's configuration file. */}}
{{- define "ironlb.speakerconfig" -}}
{{- $config := dict "dataplane" .Values.dataplane "forwarding" .Values.forwarding "ipv6Forwarding" .Values.ipv6Forwarding "serviceProxy" .Values.serviceProxy -}}
{{- $config = set $config "stateDir" .Values.speaker.stateDir -}}
{{- if .Values.ignoreExcludeLB -}}
{{- $config = set $config "ignoreExcludeLB" true -}}
{{- end -}}
{{- with .Values.externalIPCIDRs -}}
{{- $config = set $config "externalIPCIDRs" . -}}
{{- end -}}
{{- toYaml (merge $config .Values.speaker.config) -}}
{{- end -}}

{{/* Pod of a Job that runs ironlb-ccm once. Arguments: context, component, account, container, args (YAML). */}}
{{- define "ironlb.jobpod" -}}
metadata:
  labels:
    {{- include "ironlb.podlabels" . | nindent 4 }}
spec:
  restartPolicy: OnFailure
  serviceAccountName: {{ .account }}
  {{- with .Values.ccm.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- include "ironlb.pullsecrets" . | nindent 4 }}
  {{- end }}
  {{- with .Values.ccm.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.ccm.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: {{ .container }}
      image: {{ include "ironlb.image" (merge (dict "image" .Values.ccm.image) .) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- .args | nindent 8 }}
      {{- with include "ironlb.apiserver" . }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      resources:
        requests:
          cpu: 10m
          memory: 64Mi
        limits:
          memory: 256Mi
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
        seccompProfile:
          type: RuntimeDefault
{{- end -}}
