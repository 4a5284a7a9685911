package nft_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// connectionBurst returns this number of virtual servers of both families, masqueraded; restricted ones allow one
// network each.
func connectionBurst(servers int, restricted bool) ipvs.Filter {
	f := make(ipvs.Filter)
	for i := range servers {
		addr, in := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), "192.0.2.0/24"
		if i%2 == 1 {
			addr, in = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)}), "2001:db8:1::/48"
		}
		k := ipvs.Key{Addr: addr, Protocol: ipvs.TCP, Port: uint16(80 + i>>8)}
		f[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: addr}}] = struct{}{}
		f[of(ipvs.Served, k)], f[of(ipvs.Masqueraded, k)] = struct{}{}, struct{}{}
		if restricted {
			f[of(ipvs.Restricted, k)], f[from(ipvs.Allowed, k, in)] = struct{}{}, struct{}{}
		}
	}
	return f
}

// BenchmarkOneChange adds or deletes one virtual server next to many, all of them open to all clients or to one network
// each.
func BenchmarkOneChange(b *testing.B) {
	for _, c := range []struct {
		name       string
		servers    int
		restricted bool
	}{
		{"alongside 10", 10, false}, {"alongside 10000", 10000, false},
		{"alongside 10 restricted", 10, true}, {"alongside 10000 restricted", 10000, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			k := key(ipvs.UDP, vip, 53)
			changes := []ipvs.FilterChange{{Element: of(ipvs.Served, k)}, {Element: of(ipvs.Masqueraded, k)}}
			if c.restricted {
				changes = append(changes, ipvs.FilterChange{Element: of(ipvs.Restricted, k)},
					ipvs.FilterChange{Element: from(ipvs.Allowed, k, "192.0.2.0/24")})
			}
			netspace.New(b).Must(b, func() error {
				filter, err := nft.New()
				if err != nil {
					return err
				}
				defer filter.Close()
				if _, err := filter.Build(context.Background(), connectionBurst(c.servers, c.restricted)); err != nil {
					return err
				}
				remove := false
				for b.Loop() {
					for i := range changes {
						changes[i].Delete = remove
					}
					if _, err := filter.Update(context.Background(), changes); err != nil {
						return err
					}
					remove = !remove
				}
				return nil
			})
		})
	}
}

// BenchmarkBuild builds the tables of many virtual servers.
func BenchmarkBuild(b *testing.B) {
	for name, restricted := range map[string]bool{"10000": false, "10000 restricted": true} {
		b.Run(name, func(b *testing.B) {
			want := connectionBurst(10000, restricted)
			netspace.New(b).Must(b, func() error {
				filter, err := nft.New()
				if err != nil {
					return err
				}
				defer filter.Close()
				for b.Loop() {
					if _, err := filter.Build(context.Background(), want); err != nil {
						return err
					}
					b.StopTimer()
					if err := filter.Remove(context.Background()); err != nil {
						return err
					}
					b.StartTimer()
				}
				return nil
			})
		})
	}
}
