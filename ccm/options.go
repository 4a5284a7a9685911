package ccm

import (
	"fmt"

	"k8s.io/cloud-provider/options"
)

// Options returns cloud-provider's options with the defaults that this process needs, so that it runs in a Pod without
// flags.
func Options() (*options.CloudControllerManagerOptions, error) {
	o, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("preparing the options: %w", err)
	}
	o.KubeCloudShared.CloudProvider.Name = ProviderName
	o.Generic.LeaderElection.LeaderElect = true
	o.Generic.LeaderElection.ResourceName = Name
	o.Generic.LeaderElection.ResourceNamespace = "ironlb-system"
	o.SecureServing.ServerCert.PairName = Name

	// High enough that the API server is the limit, not this client: a Service costs three writes, and etcd writes more
	// of them to its disk at once the more there are.
	o.Generic.ClientConnection.QPS = 1000
	o.Generic.ClientConnection.Burst = 2000
	o.ServiceController.ConcurrentServiceSyncs = 48

	// No webhooks, and no node controller.
	o.Webhook, o.WebhookServing, o.NodeController = nil, nil, nil
	return o, nil
}

// hiddenFlags are cloud-provider's flags for controllers that this process lacks, or without use here. They are
// accepted, but not in the help.
var hiddenFlags = []string{
	"allocate-node-cidrs", "cidr-allocator-type", "cloud-config", "cluster-cidr", "cluster-name", "configure-cloud-routes",
	"contention-profiling", "controller-start-interval", "enable-leader-migration", "external-cloud-volume-plugin",
	"kube-api-content-type", "leader-elect-resource-lock", "leader-migration-config", "min-resync-period",
	"node-monitor-period", "node-status-update-frequency", "route-reconciliation-period", "use-service-account-credentials",
	"http2-max-streams-per-connection", "permit-address-sharing", "permit-port-sharing", "requestheader-allowed-names",
	"requestheader-client-ca-file", "requestheader-extra-headers-prefix", "requestheader-group-headers",
	"requestheader-uid-headers", "requestheader-username-headers", "tls-sni-cert-key",
	"authentication-token-webhook-cache-ttl", "authorization-webhook-cache-authorized-ttl",
	"authorization-webhook-cache-unauthorized-ttl", "log-flush-frequency", "log-json-info-buffer-size", "log-json-split-stream",
	"log-text-info-buffer-size", "log-text-split-stream", "vmodule", "disable-http2-serving", "feature-gates", "tls-cipher-suites", "tls-curve-preferences", "profiling",
}

// HiddenFlags returns the flags that the help leaves out.
func HiddenFlags() []string { return hiddenFlags }
