package ccm

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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
