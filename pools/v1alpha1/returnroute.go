package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ironlb/ironlb/pools"
)

// ReturnRoute is a router through which answers leave.
//
// +kubebuilder:validation:XValidation:rule="!isIP(self.gateway) || !ip(self.gateway).isLinkLocalUnicast() || has(self.interface)",message="has a link-local gateway, which every interface may have: write interface, too"
type ReturnRoute struct {
	// gateway is the address of the router, on a network of the nodes. An IPv6 one may be link-local.
	//
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="is no IP address: write the address of the router, like 192.0.2.1 or 2001:db8::1"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).family() == 6 && ip(self).isLinkLocalUnicast()",message="is no address that a router has: write a unicast address, which is link-local for IPv6 only"
	Gateway string `json:"gateway"`

	// interface towards the gateway. Absent: the one with an address in the gateway's network.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/ \\t\\n]+$') && self != '.' && self != '..' && self != 'lo'",message="is not the name of an interface towards a router: write it as ip link shows it"
	// +optional
	Interface string `json:"interface,omitempty"`
}

// MaxReturnRoutes is how many returnRoutes a pool may have.
const MaxReturnRoutes = 16

// ParseReturnRoutes parses the returnRoutes of a pool. An error begins with the field.
func ParseReturnRoutes(spec *IPAddressPoolSpec) ([]pools.ReturnRoute, error) {
	if n := len(spec.ReturnRoutes); n > MaxReturnRoutes {
		return nil, fmt.Errorf("returnRoutes has %d entries: write at most %d", n, MaxReturnRoutes)
	}
	var out []pools.ReturnRoute
	for i, r := range spec.ReturnRoutes {
		gateway, err := netip.ParseAddr(r.Gateway)
		switch {
		case err != nil || gateway.Zone() != "" || gateway.Is4In6():
			return nil, fmt.Errorf("returnRoutes[%d].gateway: %q is no IP address: write the address of the router, like 192.0.2.1 or 2001:db8::1", i, r.Gateway)
		case !gateway.IsGlobalUnicast() && !(gateway.Is6() && gateway.IsLinkLocalUnicast()):
			return nil, fmt.Errorf("returnRoutes[%d].gateway: %v is no address that a router has: write a unicast address, "+
				"which is link-local for IPv6 only", i, gateway)
		case gateway.IsLinkLocalUnicast() && r.Interface == "":
			return nil, fmt.Errorf("returnRoutes[%d]: the gateway %v is link-local, which every interface may have: write interface, too", i, gateway)
		case r.Interface == "lo" || r.Interface == "." || r.Interface == ".." || len(r.Interface) > 15 || strings.ContainsAny(r.Interface, "/ \t\n"):
			return nil, fmt.Errorf("returnRoutes[%d].interface: %q is not the name of an interface towards a router: write it as ip link shows it",
				i, r.Interface)
		}
		next := pools.ReturnRoute{Gateway: gateway, Interface: r.Interface}
		for _, before := range out {
			if before == next {
				return nil, fmt.Errorf("returnRoutes[%d] is the same as an earlier one: list it once", i)
			}
		}
		out = append(out, next)
	}
	return out, nil
}
