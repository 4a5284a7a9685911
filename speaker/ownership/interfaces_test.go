package ownership

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/speaker/view"
)

// Of several interfaces in one subnet one announces: that of the kernel's route, or the named one.
func TestOneInterfacePerSubnet(t *testing.T) {
	subnet, other := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	v := view.New()
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: []netip.Prefix{other}, Elsewhere: map[netip.Prefix]string{subnet: "eth1"}}
	v.Links["eth1"] = view.Link{Name: "eth1", Subnets: []netip.Prefix{subnet}}
	v.Links["eth2"] = view.Link{Name: "eth2", Elsewhere: map[netip.Prefix]string{subnet: "eth1"}}
	v.Links["eth3"] = view.Link{Name: "eth3"}
	for name, tt := range map[string]struct {
		addr  string
		named [][]string // by advertisement
		want  []string
	}{
		"the route":                  {"192.0.2.9", [][]string{nil}, []string{"eth1"}},
		"another subnet":             {"198.51.100.9", [][]string{nil}, []string{"eth0"}},
		"named":                      {"192.0.2.9", [][]string{{"eth0"}}, []string{"eth0"}},
		"two named":                  {"192.0.2.9", [][]string{{"eth0", "eth1"}}, []string{"eth1"}},
		"two named without it":       {"192.0.2.9", [][]string{{"eth2", "eth0"}}, []string{"eth0"}},
		"named and not named":        {"192.0.2.9", [][]string{{"eth2"}, nil}, []string{"eth2"}},
		"named, and another segment": {"192.0.2.9", [][]string{{"eth0", "eth1", "eth3"}}, []string{"eth1", "eth3"}},
	} {
		u := unit{view: v}
		for _, interfaces := range tt.named {
			u.ads = append(u.ads, view.Advertisement{Interfaces: interfaces})
		}
		if got := u.interfaces(view.Address{IP: netip.MustParseAddr(tt.addr)}, nil); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
