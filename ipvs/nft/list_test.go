package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// listed is what nft 1.0.6 prints for a set.
func listed(elements string) []byte {
	return fmt.Appendf(nil, `{"nftables": [{"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5", "json_schema_version": 1}},
{"set": {"family": "ip", "name": "x", "table": "ironlb", "type": "ipv4_addr", "flags": ["interval"], "elem": [%s]}}]}`, elements)
}

// samples have protocols with and without /etc/protocols.
var samples = map[ipvs.Set]string{
	ipvs.Pods: `{"prefix": {"addr": "198.51.100.0", "len": 25}}, "198.51.100.200"`,
	ipvs.Allowed: `{"concat": ["203.0.113.4", "udp", 53, {"prefix": {"addr": "0.0.0.0", "len": 0}}]},
		{"concat": ["203.0.113.4", 6, 53, "192.0.2.1"]}`,
	ipvs.PodInterfaces: `"cali*", "cni0"`,
}

func TestParse(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.4")
	everything := netip.MustParsePrefix("0.0.0.0/0")
	from := func(prefix string) ipvs.Element { return ipvs.Element{}.From(netip.MustParsePrefix(prefix)) }
	for set, want := range map[ipvs.Set][]ipvs.Element{
		ipvs.Pods: {from("198.51.100.0/25"), from("198.51.100.200/32")},
		ipvs.Allowed: {
			ipvs.Element{Key: ipvs.Key{Addr: vip, Protocol: ipvs.UDP, Port: 53}}.From(everything),
			ipvs.Element{Key: ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: 53}}.From(netip.MustParsePrefix("192.0.2.1/32")),
		},
		ipvs.PodInterfaces: {ipvs.Element{}.From(everything).On("cali*"), ipvs.Element{}.From(everything).On("cni0")},
	} {
		for i := range want {
			want[i].Set = set
		}
		got, foreign, err := parse(families[0], set, listed(samples[set]))
		if err != nil || foreign || !slices.Equal(got, want) {
			t.Errorf("%v: got %v, foreign %v, error %v; want %v", set, got, foreign, err, want)
		}
		if got, foreign, err = parse(families[0], set, listed(samples[set]+`, {"elem": {"val": "x", "comment": "y"}}`)); err != nil || !foreign || len(got) != len(want) {
			t.Errorf("%v with a foreign element: got %v, foreign %v, error %v", set, got, foreign, err)
		}
	}
}

// TestOctets: an element of a plain set is the same after both conversions. Other keys are foreign.
func TestOctets(t *testing.T) {
	for i, addr := range []netip.Addr{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("2001:db8::4")} {
		key := ipvs.Key{Addr: addr, Protocol: ipvs.SCTP, Port: 80}
		for set := range ipvs.NumSets {
			if !plain(set) {
				continue
			}
			e := ipvs.Element{Set: set, Key: key}
			if shapes[set] != server {
				e.Key = ipvs.Key{Addr: addr}
			}
			raw := octets(e)
			if got, ok := parseOctets(families[i], set, raw); !ok || got != e {
				t.Errorf("%v: got %v, %v", e, got, ok)
			}
			padded := slices.Clone(raw)
			padded[len(raw)-1]++ // of a port, the padding
			for _, foreign := range [][]byte{nil, raw[1:], append(slices.Clone(raw), 0, 0, 0, 0), make([]byte, 64), padded} {
				if shapes[set] == address && slices.Equal(foreign, padded) {
					continue // another address
				}
				if got, ok := parseOctets(families[i], set, foreign); ok {
					t.Errorf("octets %x of %v: %v", foreign, set, got)
				}
			}
			if got, ok := parseOctets(families[1-i], set, raw); ok {
				t.Errorf("%v in the table of the other family: %v", e, got)
			}
		}
	}
}

// FuzzParse feeds possible output of another program, or of another version of nft.
func FuzzParse(f *testing.F) {
	for set, sample := range samples {
		f.Add(uint8(set), listed(sample))
	}
	f.Add(uint8(ipvs.Pods), listed(`{"range": ["203.0.113.4", "203.0.113.6"]}`))
	f.Add(uint8(ipvs.Pods), listed(`{"prefix": {"addr": "203.0.113.4", "len": 99}}`))
	f.Add(uint8(ipvs.Allowed), listed(`{"concat": ["2001:db8::", 6, 1, {"prefix": {"addr": "::", "len": 0}}]}`))
	f.Add(uint8(ipvs.Allowed), listed(`{"concat": ["203.0.113.4", "tcp", -1, "192.0.2.1"]}`))
	f.Add(uint8(ipvs.Pods), []byte(`{"nftables": [{"set": 1}, {"set": {}}, {"rule": null}]}`))
	f.Fuzz(func(t *testing.T, set uint8, out []byte) {
		elements, _, err := parse(families[0], ipvs.Set(set), out)
		if err != nil && elements != nil {
			t.Error("elements and an error")
		}
		for _, e := range elements {
			if wrong := validate(e); wrong != "" {
				t.Errorf("parsed %v: %s", e, wrong)
			}
		}
	})
}

// FuzzOctets feeds keys that another program may have added.
func FuzzOctets(f *testing.F) {
	f.Add(uint8(ipvs.Hairpin), []byte{192, 0, 2, 1, 192, 0, 2, 1})
	f.Add(uint8(ipvs.Served), []byte{192, 0, 2, 1, 6, 0, 0, 0, 0, 80, 0, 0})
	f.Fuzz(func(t *testing.T, set uint8, key []byte) {
		for _, family := range families {
			e, ok := parseOctets(family, ipvs.Set(set%uint8(ipvs.NumSets)), key)
			if wrong := validate(e); ok && wrong != "" {
				t.Errorf("parsed %v: %s", e, wrong)
			}
		}
	})
}
