package plan

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/view"
)

type (
	addr        = netip.Addr
	virtualKey  = ipvs.Key
	serviceName = pools.ServiceKey
)

// many returns a View of n Services of three ports and four endpoints each, with a VirtualIP each.
func many(n int) *view.View {
	v := view.New()
	v.Nodes["a"], v.Nodes["b"] = view.Node{}, view.Node{}
	v.Links["eth0"] = view.Link{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}
	v.Advertisements["all"] = view.Advertisement{}
	for i := range n {
		key := serviceKey(fmt.Sprint("default/s", i))
		vip := numbered(1, i)
		v.Services[key] = view.Service{Addresses: []view.Address{{IP: vip, Pool: "main"}}, Created: int64(i), Ports: []view.Port{
			{Name: "http", Protocol: ipvs.TCP, Port: 80}, {Name: "https", Protocol: ipvs.TCP, Port: 443}, {Name: "dns", Protocol: ipvs.UDP, Port: 53}}}
		slice := view.Slice{Ports: []view.Port{
			{Name: "http", Protocol: ipvs.TCP, Port: 8080}, {Name: "https", Protocol: ipvs.TCP, Port: 8443}, {Name: "dns", Protocol: ipvs.UDP, Port: 5353}}}
		for j := range 4 {
			slice.Endpoints = append(slice.Endpoints, view.Endpoint{Addr: numbered(2, 4*i+j), Node: "a", Ready: true, Serving: true})
		}
		v.Slices[key] = map[string]view.Slice{"s": slice}
		v.VIPs[vip.String()] = view.VIP{Addresses: []netip.Addr{vip}, Services: []pools.ServiceKey{key}, Nodes: []string{"a", "b"}}
	}
	return v
}

// numbered returns the i-th address of a network.
func numbered(network uint16, i int) netip.Addr {
	b := netip.MustParseAddr("2001:db8::").As16()
	binary.BigEndian.PutUint16(b[4:], network)
	binary.BigEndian.PutUint32(b[12:], uint32(i))
	return netip.AddrFrom16(b)
}

// dropEndpoint removes the last endpoint, or restores it.
func dropEndpoint(v *view.View, key pools.ServiceKey) {
	slice := v.Slices[key]["s"]
	if len(slice.Endpoints) == 4 {
		slice.Endpoints = slice.Endpoints[:3]
	} else {
		slice.Endpoints = slice.Endpoints[:4]
	}
	v.Slices[key]["s"] = slice
}

// BenchmarkOneEndpoint measures a plan after one endpoint of one Service was added or removed.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			v, p := many(n), NewPlanner(Options{Node: "a"})
			p.Plan(v, view.Touched{All: true}, time.Time{})
			key := serviceKey("default/s7")
			runtime.GC() // collect garbage of the first plan
			for b.Loop() {
				dropEndpoint(v, key)
				p.Plan(v, view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}, time.Time{})
			}
		})
	}
}
