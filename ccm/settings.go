package ccm

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/cloud-provider/options"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/warnings"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Settings are the flags in addition to cloud-provider's.
type Settings struct {
	warnings.Settings
	// IgnoreExcludeLB includes nodes with the label node.kubernetes.io/exclude-from-external-load-balancers.
	IgnoreExcludeLB bool
	// ProbeAddress is the address of /livez and /readyz. Empty: not served.
	ProbeAddress string
	// awaited are the files of a certificate that did not exist at the start.
	awaited apiserveroptions.CertKey
}

// DefaultSettings serve Services without a class and those of Class.
func DefaultSettings() Settings {
	return Settings{Settings: warnings.Settings{Scope: servicerecord.DefaultScope()}}
}

// Flags adds the flags, with the current values as defaults.
func (s *Settings) Flags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("ironlb")
	fs.StringVar(&s.Class, "load-balancer-class", s.Class, "The spec.loadBalancerClass whose Services are served, in addition to those without a class.")
	fs.BoolVar(&s.OnlyClass, "only-class", s.OnlyClass, "Serve only Services of --load-balancer-class. Services without a class that IronLB served before keep their addresses\nuntil they are deleted or another controller writes theirs.")
	fs.StringVar(&s.IPMode, "ip-mode", s.IPMode, "ipMode of the addresses in the status of Services. Proxy: the speakers serve them, also for clients on the nodes. VIP: kube-proxy\nserves them, and the speakers only answer ARP for them (docs/tasks/kube-proxy.md).")
	fs.StringVar((*string)(&s.Forwarding), "forwarding", string(s.Forwarding), "How the addresses of Services without the annotation "+v1alpha1.AnnotationForwarding+" are forwarded, pod or direct, as forwarding in\nthe configuration of the speakers: with direct, Services of policy Local with different Pods may share an address.")
	fs.BoolVar(&s.ServiceProxy, "service-proxy", s.ServiceProxy, "The speakers serve all Services (serviceProxy: true in their configuration): report external IPs that they refuse.")
	fs.StringSliceVar(&s.ExternalIPCIDRs, "external-ip-cidrs", s.ExternalIPCIDRs, "The CIDRs of external IPs that the speakers serve, as externalIPCIDRs in their configuration: report others as refused.")
	fs.BoolVar(&s.IgnoreExcludeLB, "ignore-exclude-lb", s.IgnoreExcludeLB,
		"Have nodes labelled "+v1.LabelNodeExcludeBalancers+"\nanswer as others do. Set ignoreExcludeLB in the speakers' configuration as well.")
	fs.StringVar(&s.ProbeAddress, "probe-bind-address", s.ProbeAddress, "Address to serve /livez and /readyz over HTTP, for example :7474. Empty: not served.")
}

// Validate names the invalid flag.
func (s *Settings) Validate() error {
	if bad := validation.IsQualifiedName(s.Class); len(bad) > 0 {
		return fmt.Errorf("--load-balancer-class is %q: %s", s.Class, strings.Join(bad, "; "))
	}
	for _, text := range s.ExternalIPCIDRs {
		if p, err := netip.ParsePrefix(text); err != nil || p != p.Masked() {
			return fmt.Errorf("--external-ip-cidrs has %q: write CIDRs such as 192.0.2.0/24,2001:db8::/32", text)
		}
	}
	if _, err := v1alpha1.ParseDefaultForwarding(string(s.Forwarding)); err != nil {
		return fmt.Errorf("--forwarding: %w", err)
	}
	switch v1.LoadBalancerIPMode(s.IPMode) {
	case v1.LoadBalancerIPModeProxy, v1.LoadBalancerIPModeVIP:
		return nil
	}
	return fmt.Errorf("--ip-mode is %q: set it to %s or %s", s.IPMode, v1.LoadBalancerIPModeProxy, v1.LoadBalancerIPModeVIP)
}

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
