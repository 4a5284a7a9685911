package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/guest"
)

// Configuration is a kind of cluster, the installation of IronLB on it, and the specs that it must pass.
type Configuration struct {
	Name      string // on the command line and in skips.yaml
	About     string
	Kernel    lab.Kernel
	DualStack bool
	KubeProxy lab.ProxyMode // empty: IronLB is the service proxy
	Dataplane string        // of the speakers; empty: their default
	// Forwarding is that of Services without an annotation; empty: the default of the chart.
	Forwarding string
	BGP        *BGP     // nil: addresses by ARP and neighbor discovery
	Specs      []string // regular expressions of full names
	Subset     []string // those run by `make test`; empty: none
	Emulated   []string // those run if the nodes are in an emulated guest; empty: all
}

// inGuest reports whether the nodes are in a guest, because this kernel has no IPVS.
func (c Configuration) inGuest() bool { return c.Kernel == lab.Auto && guest.Probe() != nil }

// BGP announces the pool to BIRD on the lab's router, which spreads connections over all nodes.
type BGP struct {
	// HashPolicy is the router's net.ipv4.fib_multipath_hash_policy: 0 by addresses, 1 by addresses and ports.
	HashPolicy int
}

// Groups of specs, by name prefix.
const (
	loadBalancers = `^\[sig-network\] LoadBalancers `
	services      = `^\[sig-network\] (Services|Service CIDRs|ServiceCIDR and IPAddress API|Service endpoints latency|Proxy version v1|API Server) `
	conntrack     = `^\[sig-network\] (Conntrack|KubeProxy) `
	endpoints     = `^\[sig-network\] (EndpointSlice|EndpointSliceMirroring|EndpointsController|Endpoints) `
	networking    = `^\[sig-network\] (Networking|NoSNAT|HostPort|Connectivity Pod Lifecycle|Traffic Distribution|Topology Hints) `
	dns           = `^\[sig-network\] DNS .*\[Conformance\]`
	dualStack     = `^\[sig-network\] \[Feature:IPv6DualStack\] `
)

var all = []string{loadBalancers, services, conntrack, endpoints, networking, dns}

var configurations = []Configuration{
	{
		Name:      "a",
		About:     "alongside kube-proxy nftables",
		Kernel:    lab.Native,
		KubeProxy: lab.ProxyNFTables,
		Specs:     all,
	},
	{
		Name:      "b",
		About:     "serviceProxy on nftables",
		Kernel:    lab.Native,
		Dataplane: "nftables",
		Specs:     all,
		// Without the two tests that wait for the end of an affinity: each takes more than two minutes.
		Subset: []string{loadBalancers, `^\[sig-network\] Services .*(\[Conformance\]|session affinity work|switch session affinity|[Tt]rafficPolicy)`, conntrack},
	},
	{
		Name:      "c",
		About:     "serviceProxy on IPVS",
		Kernel:    lab.Auto,
		Dataplane: "ipvs",
		Specs:     all,
		Emulated: []string{
			`^\[sig-network\] Services should (serve a basic endpoint from pods|be able to change the type from NodePort to ExternalName|have session affinity work for (service with type clusterIP|NodePort service)) `,
			`^\[sig-network\] LoadBalancers .*(work for type=LoadBalancer|work from pods|create LoadBalancer Service without NodePort|server pod cycles .* on the same nodes|have session affinity work for LoadBalancer service)`,
		},
	},
	{
		Name:      "dual",
		About:     "serviceProxy on nftables, dual-stack",
		Kernel:    lab.Native,
		DualStack: true,
		Dataplane: "nftables",
		Specs:     []string{loadBalancers, dualStack},
	},
	{
		Name:      "bgp-address",
		About:     "BGP to BIRD with ECMP, hash by address; alongside kube-proxy nftables",
		Kernel:    lab.Native,
		KubeProxy: lab.ProxyNFTables,
		BGP:       &BGP{HashPolicy: 0},
		Specs:     []string{loadBalancers},
	},
	{
		Name:      "bgp-port",
		About:     "BGP to BIRD with ECMP, hash by port; alongside kube-proxy nftables",
		Kernel:    lab.Native,
		KubeProxy: lab.ProxyNFTables,
		BGP:       &BGP{HashPolicy: 1},
		Specs:     []string{loadBalancers},
	},
	{
		Name:       "direct-l2",
		About:      "forwarding direct by default; serviceProxy on nftables",
		Kernel:     lab.Native,
		Dataplane:  "nftables",
		Forwarding: "direct",
		Specs:      all,
	},
	{
		Name:       "direct-bgp",
		About:      "forwarding direct by default; BGP to BIRD with ECMP, hash by port; alongside kube-proxy nftables",
		Kernel:     lab.Native,
		KubeProxy:  lab.ProxyNFTables,
		Forwarding: "direct",
		BGP:        &BGP{HashPolicy: 1},
		Specs:      []string{loadBalancers},
	},
}

// pick returns the configurations of a list of names, separated by commas or blanks; all if it is empty.
func pick(list string) ([]Configuration, error) {
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		return configurations, nil
	}
	var picked []Configuration
	for _, name := range names {
		i := slices.IndexFunc(configurations, func(c Configuration) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no configuration %q: there are %s", name, strings.Join(configurationNames(), ", "))
		}
		picked = append(picked, configurations[i])
	}
	return picked, nil
}

func configurationNames() []string {
	var names []string
	for _, c := range configurations {
		names = append(names, c.Name)
	}
	return names
}
