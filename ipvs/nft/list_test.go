package nft

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// sample is what nft 1.0.6 prints, with and without /etc/protocols.
const sample = `{"nftables": [
{"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5", "json_schema_version": 1}},
{"table": {"family": "ip", "name": "ironlb", "handle": 1}},
{"set": {"family": "ip", "name": "addresses", "table": "ironlb", "type": "ipv4_addr", "handle": 3, "elem": ["203.0.113.4"]}},
{"set": {"family": "ip", "name": "served", "table": "ironlb", "type": ["ipv4_addr", "inet_proto", "inet_service"], "handle": 4,
 "elem": [{"concat": ["203.0.113.4", "udp", 53]}, {"concat": ["203.0.113.4", "sctp", 80]}, {"concat": ["203.0.113.4", 6, 80]}]}},
{"set": {"family": "ip", "name": "pods", "table": "ironlb", "type": "ipv4_addr", "flags": ["interval"],
 "elem": [{"prefix": {"addr": "198.51.100.0", "len": 25}}, "198.51.100.200"]}},
{"set": {"family": "ip", "name": "allowed", "table": "ironlb", "type": ["ipv4_addr", "inet_proto", "inet_service", "ipv4_addr"],
 "flags": ["interval"], "elem": [{"concat": ["203.0.113.4", "udp", 53, {"prefix": {"addr": "0.0.0.0", "len": 0}}]},
 {"concat": ["203.0.113.4", "tcp", 53, "192.0.2.1"]}]}},
{"set": {"family": "ip", "name": "hairpin", "type": ["ipv4_addr", "ipv4_addr"], "elem": [{"concat": ["198.51.100.2", "198.51.100.2"]}]}},
{"set": {"family": "ip", "name": "pod-interfaces", "type": "ifname", "flags": ["interval"], "elem": ["cali*", "cni0"]}},
{"chain": {"family": "ip", "table": "ironlb", "name": "postrouting", "handle": 2, "type": "nat", "hook": "postrouting", "prio": 100}}
]}`

func TestParse(t *testing.T) {
	got, shape, err := parse(families[0], []byte(sample))
	if err != nil || shape == "" {
		t.Fatalf("shape %q, error %v", shape, err)
	}
	vip := netip.MustParseAddr("203.0.113.4")
	want := ipvs.Filter{
		{Set: ipvs.Addresses, Key: ipvs.Key{Addr: vip}}:                             {},
		{Set: ipvs.Served, Key: ipvs.Key{Addr: vip, Protocol: ipvs.UDP, Port: 53}}:  {},
		{Set: ipvs.Served, Key: ipvs.Key{Addr: vip, Protocol: ipvs.SCTP, Port: 80}}: {},
		{Set: ipvs.Served, Key: ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: 80}}:  {},
		{Set: ipvs.Pods, Prefix: netip.MustParsePrefix("198.51.100.0/25")}:          {},
		{Set: ipvs.Pods, Prefix: netip.MustParsePrefix("198.51.100.200/32")}:        {},
		{Set: ipvs.Allowed, Key: ipvs.Key{Addr: vip, Protocol: ipvs.UDP, Port: 53},
			Prefix: netip.MustParsePrefix("0.0.0.0/0")}: {},
		{Set: ipvs.Allowed, Key: ipvs.Key{Addr: vip, Protocol: ipvs.TCP, Port: 53},
			Prefix: netip.MustParsePrefix("192.0.2.1/32")}: {},
		{Set: ipvs.PodInterfaces, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Interface: "cali*"}: {},
		{Set: ipvs.PodInterfaces, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Interface: "cni0"}:  {},
		{Set: ipvs.Hairpin, Key: ipvs.Key{Addr: netip.MustParseAddr("198.51.100.2")}}:             {},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// FuzzParse feeds possible output of another program, or of another version of nft.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(`{"nftables": [{"set": {"name": "served", "elem": [{"concat": ["203.0.113.4", "tcp", -1]}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": {"name": "addresses", "elem": [{"elem": {"val": "203.0.113.4", "comment": "x"}}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": {"name": "pods", "elem": [{"range": ["203.0.113.4", "203.0.113.6"]}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": {"name": "pods", "elem": [{"prefix": {"addr": "203.0.113.4", "len": 99}}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": {"name": "allowed", "elem": [{"concat": ["2001:db8::", 6, 1, {"prefix": {"addr": "::", "len": 0}}]}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": 1}, {"set": {}}, {"rule": null}]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		have, _, err := parse(families[0], out)
		if have == nil && err == nil {
			t.Error("no content and no error")
		}
		for e := range have {
			if wrong := validate(e); wrong != "" {
				t.Errorf("parsed %v: %s", e, wrong)
			}
		}
	})
}
