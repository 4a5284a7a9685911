package main

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/traffic"
)

// config is the validated configuration of this node from the file of --config. docs/reference/configuration.md
// explains every field.
type config struct {
	// ServiceProxy makes the speaker serve every Service, in place of kube-proxy.
	ServiceProxy bool
	// IgnoreExcludeLB ignores the label that excludes nodes from external load balancers.
	IgnoreExcludeLB bool
	Dataplane       dataplaneKind
	// Forwarding applies to a Service without ironlb.io/forwarding.
	Forwarding v1alpha1.Forwarding
	// TunnelPort is the UDP port of tunnels between nodes.
	TunnelPort uint16
	// Scheduler and Flags apply to a virtual server whose Service has no ironlb.io/scheduler.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortCIDRs contain the addresses of the node that serve NodePorts; empty: the Node's own InternalIPs.
	NodePortCIDRs []netip.Prefix
	// DetectLocal identifies packets of Pods: detectLocalMode, detectLocal and podCIDRs.
	DetectLocal forwarding.DetectLocal
	// ExternalIPCIDRs contain the external IPs that are served; empty: none.
	ExternalIPCIDRs []netip.Prefix
	// DrainLimit is how long a terminating endpoint keeps its connections.
	DrainLimit time.Duration
	// EndpointChecks enables the check of new TCP endpoints before they take connections from others.
	EndpointChecks bool
	// LeaveOutUnreachable stops new connections to endpoints on nodes that this one cannot reach; ResetAfter is when
	// existing connections to them are reset, 0 for never.
	LeaveOutUnreachable bool
	ResetAfter          time.Duration
	// AnswerPing makes the virtual addresses answer ICMP echo requests.
	AnswerPing bool
	// IPv6Forwarding makes "prepare" enable IPv6 forwarding on the node. The speaker does so itself, if permitted, when
	// IPv6 addresses are served.
	IPv6Forwarding bool
	// HealthzAddress serves /healthz and /livez of the service proxy; unspecified means both families.
	HealthzAddress netip.AddrPort
	// ProxyModeAddress on the loopback interface serves /proxyMode of the service proxy; invalid: not served.
	ProxyModeAddress netip.AddrPort
	// StateDir is the directory of the record that Calico polices the node, for the next start; empty: none.
	StateDir string
	Timeouts timeouts
	// Traffic is which traffic counters become metrics.
	Traffic       traffic.Detail
	Conntrack     conntrackLimits
	Failover      failover
	Announcements announcements
}

// announcements configures the announcements of held addresses.
type announcements struct {
	// Refresh is the long-term interval; 0 for never.
	Refresh time.Duration
	// PerSecond is the maximum frame rate on one interface.
	PerSecond int
}

// failover configures the liveness protocol of the speakers.
type failover struct {
	Profile member.Profile
	// Port is the UDP port of the protocol. Cluster separates clusters on a shared network; empty: by their certificate
	// authority.
	Port    uint16
	Cluster string
	// Broadcast sends heartbeats to all hosts of a network, for networks that drop the speakers' multicast group.
	Broadcast bool
}

// dataplane is the forwarding data plane.
type dataplaneKind string

const (
	// dataplaneAuto is IPVS if the kernel has it and it bypasses no NetworkPolicy, else nftables.
	dataplaneAuto     dataplaneKind = "auto"
	dataplaneIPVS     dataplaneKind = "ipvs"
	dataplaneNFTables dataplaneKind = "nftables"
)

// timeouts are IPVS's own, of an idle connection; 0 keeps the kernel's value.
type timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// conntrackLimits are the limits that kube-proxy sets on a node, and that the speaker sets instead. 0 keeps the node's
// value.
type conntrackLimits struct {
	MaxPerCore, Min                            int
	TCPEstablishedTimeout, TCPCloseWaitTimeout time.Duration
}

// conntrackMost is the maximum value that is set, for any number of cores.
const conntrackMost = 1 << 20

// max returns the value of nf_conntrack_max for a number of cores, 0 to keep it.
func (c conntrackLimits) max(cores int) int {
	if c.MaxPerCore == 0 {
		return c.Min
	}
	return max(c.Min, min(c.MaxPerCore*cores, conntrackMost))
}

// defaultTunnelPort follows the port of the heartbeats.
const defaultTunnelPort = member.DefaultPort + 1

// newConfig returns the defaults.
func newConfig() config {
	return config{
		Dataplane:  dataplaneAuto,
		Forwarding: v1alpha1.ForwardingPod,
		TunnelPort: defaultTunnelPort,
		Scheduler:  ipvs.RoundRobin,
		// IPVS deletes a connection that is idle for longer in any case: 15 minutes is the kernel's time-out of an
		// established TCP connection.
		DrainLimit:          15 * time.Minute,
		EndpointChecks:      true,
		LeaveOutUnreachable: true,
		ResetAfter:          10 * time.Second,
		DetectLocal:         forwarding.DetectLocal{Mode: forwarding.NodeCIDR},
		AnswerPing:          true,
		HealthzAddress:      netip.AddrPortFrom(netip.IPv4Unspecified(), 10256),

		ProxyModeAddress: netip.MustParseAddrPort("127.0.0.1:10249"),
		Conntrack: conntrackLimits{
			MaxPerCore: 32768, Min: 131072,
			TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
		},
		Failover:      failover{Profile: member.Standard, Port: member.DefaultPort},
		Traffic:       traffic.Auto,
		Announcements: announcements{Refresh: 100 * time.Second, PerSecond: 5000},
	}
}
