package main

import (
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/plan"
)

// config is how this node serves: the file of --config, checked. docs/configuration.md explains every field.
type config struct {
	// ServiceProxy serves every Service here, in place of kube-proxy.
	ServiceProxy bool
	// IgnoreExcludeLB has nodes answer that external load balancers are to leave out.
	IgnoreExcludeLB bool
	Dataplane       dataplane
	// Scheduler and Flags are what a virtual server gets whose Service has no ironlb.io/scheduler.
	Scheduler string
	Flags     ipvs.Flags
	// NodePortPrimary asks for NodePorts on the Node's own InternalIPs, NodePortCIDRs for those addresses of the node that
	// they hold. One of them is set.
	NodePortPrimary bool
	NodePortCIDRs   []netip.Prefix
	// DetectLocal is how packets of Pods are known: detectLocalMode, detectLocal and podCIDRs.
	DetectLocal plan.DetectLocal
	// ExternalIPCIDRs hold the external IPs that are served; none: no external IP is.
	ExternalIPCIDRs []netip.Prefix
	// DrainLimit is how long an endpoint that terminates keeps its connections.
	DrainLimit time.Duration
	// EndpointChecks has new TCP endpoints checked before they take connections from others.
	EndpointChecks bool
	// LeaveOutUnreachable has endpoints on nodes that this one cannot reach take no new connections; ResetAfter is when
	// connections to them end, 0 for never.
	LeaveOutUnreachable bool
	ResetAfter          time.Duration
	// AnswerPing lets the virtual addresses answer ICMP echo requests.
	AnswerPing bool
	// IPv6Forwarding asks "prepare" to make the node forward IPv6. The speaker does so itself where it may, when addresses of it are served.
	IPv6Forwarding bool
	// HealthzAddress serves /healthz and /livez of the service proxy; unspecified means both families.
	HealthzAddress netip.AddrPort
	// ProxyModeAddress of the loopback interface serves /proxyMode of the service proxy; invalid for nowhere.
	ProxyModeAddress netip.AddrPort
	// StateDir is where the speaker keeps what the API server told last, for a start while it is away; empty for nowhere.
	StateDir      string
	Timeouts      timeouts
	Conntrack     conntrackLimits
	Failover      failover
	Announcements announcements
}

// announcements are what the network is told of addresses that are held (announce.md L2.9).
type announcements struct {
	// Refresh is how often in the long run; 0 for never.
	Refresh time.Duration
	// PerSecond is the most frames on one interface.
	PerSecond int
}

// failover is how the speakers watch one another.
type failover struct {
	Profile member.Profile
	// Port is the UDP port on which they talk, Cluster keeps clusters apart that share a network; empty: by their
	// certificate authority.
	Port    uint16
	Cluster string
	// Broadcast sends heartbeats to all hosts of a network, for those that drop the speakers' group.
	Broadcast bool
}

// dataplane is what forwards.
type dataplane string

const (
	// dataplaneAuto is IPVS where the kernel has it and it bypasses no NetworkPolicy, else nftables.
	dataplaneAuto     dataplane = "auto"
	dataplaneIPVS     dataplane = "ipvs"
	dataplaneNFTables dataplane = "nftables"
)

// timeouts are IPVS' own, of an idle connection; 0 leaves the kernel's.
type timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// conntrackLimits are those that kube-proxy sets on a node, and the speaker in its place. 0 leaves what there is.
type conntrackLimits struct {
	MaxPerCore, Min                            int
	TCPEstablishedTimeout, TCPCloseWaitTimeout time.Duration
}

// conntrackMost is the most connections asked for, however many cores there are (ipvs.md 1.4).
const conntrackMost = 1 << 20

// max returns the value of nf_conntrack_max for a number of cores, 0 to leave it.
func (c conntrackLimits) max(cores int) int {
	if c.MaxPerCore == 0 {
		return c.Min
	}
	return max(c.Min, min(c.MaxPerCore*cores, conntrackMost))
}

// newConfig returns what holds without a file.
func newConfig() config {
	return config{
		Dataplane:       dataplaneAuto,
		Scheduler:       ipvs.RoundRobin,
		NodePortPrimary: true,
		// A connection that idles longer is forgotten by IPVS in any case: 15 minutes is the kernel's time-out of an
		// established TCP connection.
		DrainLimit:          15 * time.Minute,
		EndpointChecks:      true,
		LeaveOutUnreachable: true,
		ResetAfter:          10 * time.Second,
		DetectLocal:         plan.DetectLocal{Mode: plan.NodeCIDR},
		AnswerPing:          true,
		HealthzAddress:      netip.AddrPortFrom(netip.IPv4Unspecified(), 10256),

		ProxyModeAddress: netip.MustParseAddrPort("127.0.0.1:10249"),
		Conntrack: conntrackLimits{
			MaxPerCore: 32768, Min: 131072,
			TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
		},
		Failover:      failover{Profile: member.Standard, Port: member.DefaultPort},
		Announcements: announcements{Refresh: 100 * time.Second, PerSecond: 5000},
	}
}
