package direct

import (
	"fmt"

	"github.com/ironlb/ironlb/ipvs"
)

// Reason is the kind of a [Problem].
type Reason string

const (
	// NoCommand: the program nft is missing.
	NoCommand Reason = "NoNFTCommand"
	// NoRules: the kernel or nft does not accept the rules.
	NoRules Reason = "NoNFTRules"
	// NoVXLAN: the kernel has no vxlan devices.
	NoVXLAN Reason = "NoVXLAN"
	// PortTaken: another program or vxlan device uses the UDP port.
	PortTaken Reason = "TunnelPortTaken"
	// NameTaken: an interface of another kind has the name of a tunnel.
	NameTaken Reason = "TunnelNameTaken"
	// MixedFamilies: the addresses of two nodes are of different families, so no tunnel connects them.
	MixedFamilies Reason = "MixedNodeFamilies"
	// NoIPv6: the tunnels of this node cannot have IPv6.
	NoIPv6 Reason = "NoIPv6"
)

// Problem is an error that lasts: the node cannot direct connections. It wraps [ipvs.ErrNoTunnel], or with NoIPv6
// [ipvs.ErrNoTunnelIPv6]. Err has the remediation.
type Problem struct {
	Reason Reason
	Err    error
}

func (p *Problem) Error() string { return fmt.Sprintf("%s: %v", p.Reason, p.Err) }

// Unwrap returns the cause as well.
func (p *Problem) Unwrap() []error {
	if p.Reason == NoIPv6 {
		return []error{ipvs.ErrNoTunnelIPv6, p.Err}
	}
	return []error{ipvs.ErrNoTunnel, p.Err}
}
