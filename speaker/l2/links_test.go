package l2

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func attrs(change func(*netlink.LinkAttrs)) netlink.LinkAttrs {
	at := netlink.LinkAttrs{Index: 5, Name: "eth0", EncapType: "ether", HardwareAddr: []byte{2, 0, 0, 0, 0, 1},
		RawFlags: unix.IFF_UP | unix.IFF_LOWER_UP | unix.IFF_BROADCAST | unix.IFF_MULTICAST}
	if change != nil {
		change(&at)
	}
	return at
}

func TestUnfitInterfacesAreNamed(t *testing.T) {
	of := func(l netlink.Link) device { return device{Link: l} }
	by := map[int]device{
		1: of(&netlink.Bond{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "bond0"}}),
		2: of(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "vrf0"}}),
	}
	for name, tt := range map[string]struct {
		change func(*netlink.LinkAttrs)
		want   string // in the error
	}{
		"Ethernet":       {nil, ""},
		"in a VRF":       {func(at *netlink.LinkAttrs) { at.MasterIndex = 2 }, ""},
		"port":           {func(at *netlink.LinkAttrs) { at.MasterIndex = 1 }, "name bond0"},
		"port of gone":   {func(at *netlink.LinkAttrs) { at.MasterIndex = 9 }, "it is a port"},
		"loopback":       {func(at *netlink.LinkAttrs) { at.RawFlags |= unix.IFF_LOOPBACK }, "loopback"},
		"InfiniBand":     {func(at *netlink.LinkAttrs) { at.EncapType, at.HardwareAddr = "infiniband", make([]byte, 20) }, `"infiniband": name an Ethernet interface`},
		"tunnel":         {func(at *netlink.LinkAttrs) { at.EncapType, at.HardwareAddr = "none", nil }, `"none"`},
		"ARP off":        {func(at *netlink.LinkAttrs) { at.RawFlags |= unix.IFF_NOARP }, "arp on"},
		"point to point": {func(at *netlink.LinkAttrs) { at.RawFlags &^= unix.IFF_BROADCAST }, "cannot broadcast"},
	} {
		at := attrs(tt.change)
		switch err := fit(&at, by); {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

// The path of an interface changes with the interfaces below it, not with Pods.
func TestPath(t *testing.T) {
	at := func(index, parent, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, MasterIndex: master}
	}
	devices := func() map[int]device {
		bond := netlink.NewLinkBond(at(3, 0, 0))
		bond.ActiveSlave = 1
		return map[int]device{
			1: {Link: &netlink.Device{LinkAttrs: at(1, 0, 3)}, carrierChanges: 1},
			2: {Link: &netlink.Device{LinkAttrs: at(2, 0, 3)}, carrierChanges: 1},
			3: {Link: bond, carrierChanges: 1},
			4: {Link: &netlink.Vlan{LinkAttrs: at(4, 3, 6)}, carrierChanges: 1},
			5: {Link: &netlink.Veth{LinkAttrs: at(5, 9, 6)}, carrierChanges: 1},
			6: {Link: &netlink.Bridge{LinkAttrs: at(6, 0, 0)}, carrierChanges: 1},
		}
	}
	of := func(by map[int]device) path { return pathOf(by[6], by, 0) }
	before := of(devices())
	for name, tt := range map[string]struct {
		change func(map[int]device)
		same   bool
	}{
		"nothing":                     {func(map[int]device) {}, true},
		"a Pod's port":                {func(by map[int]device) { d := by[5]; d.carrierChanges++; by[5] = d }, true},
		"a Pod gone":                  {func(by map[int]device) { delete(by, 5) }, true},
		"the bridge":                  {func(by map[int]device) { d := by[6]; d.carrierChanges += 2; by[6] = d }, false},
		"the VLAN":                    {func(by map[int]device) { d := by[4]; d.carrierChanges += 2; by[4] = d }, false},
		"the bond below the VLAN":     {func(by map[int]device) { d := by[3]; d.carrierChanges += 2; by[3] = d }, false},
		"the active port of the bond": {func(by map[int]device) { by[3].Link.(*netlink.Bond).ActiveSlave = 2 }, false},
		"a circle":                    {func(by map[int]device) { by[4].Attrs().ParentIndex = 6 }, false},
	} {
		by := devices()
		tt.change(by)
		if got := of(by); (got == before) != tt.same {
			t.Errorf("%s: %v, before %v, want the same: %v", name, got, before, tt.same)
		}
	}
}

func TestSubnet(t *testing.T) {
	for in, want := range map[string]string{
		"203.0.113.9/24": "203.0.113.0/24", "2001:db8::9/64": "2001:db8::/64",
		"203.0.113.9/32": "", "2001:db8::9/128": "", "fe80::1/64": "", "127.0.0.1/8": "", "::1/128": "",
	} {
		parsed, err := netlink.ParseIPNet(in)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := subnet(parsed)
		if ok != (want != "") || ok && got != netip.MustParsePrefix(want) {
			t.Errorf("%s: %v, %v", in, got, ok)
		}
	}
}
