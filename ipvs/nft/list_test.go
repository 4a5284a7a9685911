package nft

import (
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
{"chain": {"family": "ip", "table": "ironlb", "name": "postrouting", "handle": 2, "type": "nat", "hook": "postrouting", "prio": 100}}
]}`

func TestParse(t *testing.T) {
	got, shape, err := parse([]byte(sample))
	if err != nil || shape == "" {
		t.Fatalf("shape %q, error %v", shape, err)
	}
	vip := netip.MustParseAddr("203.0.113.4")
	want := ipvs.Firewall{
		Addrs: map[netip.Addr]struct{}{vip: {}},
		Served: map[ipvs.Key]struct{}{
			{Addr: vip, Protocol: ipvs.UDP, Port: 53}:  {},
			{Addr: vip, Protocol: ipvs.SCTP, Port: 80}: {},
			{Addr: vip, Protocol: ipvs.TCP, Port: 80}:  {},
		},
	}
	if !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// FuzzParse feeds what another program, or another version of nft, may print.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(`{"nftables": [{"set": {"name": "served", "elem": [{"concat": ["203.0.113.4", "tcp", -1]}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": {"name": "addresses", "elem": [{"elem": {"val": "203.0.113.4", "comment": "x"}}]}}]}`))
	f.Add([]byte(`{"nftables": [{"set": 1}, {"set": {}}, {"rule": null}]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		have, _, err := parse(out)
		if have.Addrs == nil && err == nil {
			t.Error("no content and no error")
		}
		for key := range have.Served {
			if protocolNames[key.Protocol] == "" || !key.Addr.IsValid() {
				t.Errorf("parsed %v", key)
			}
		}
	})
}
