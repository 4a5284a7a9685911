package speaker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/view"
)

// change makes one random change of the View and returns what it touched, as the informers do.
func change(r *rand.Rand, v *view.View) view.Touched {
	i := r.IntN(6)
	key := pools.ServiceKey{Namespace: "default", Name: fmt.Sprint("s", i)}
	addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(i % 4)}) // some share one
	touched := view.Touched{Services: map[pools.ServiceKey]struct{}{key: {}}}
	switch r.IntN(9) {
	case 8:
		return changeBGP(r, v)
	case 0:
		delete(v.Services, key)
	case 1:
		delete(v.Slices, key)
	case 2, 3:
		svc := view.Service{Addresses: []view.Address{{IP: addr, Pool: "main"}}, Local: r.IntN(3) == 0, Created: int64(r.IntN(3))}
		if r.IntN(2) == 0 {
			svc.Forwarding = view.Direct
		}
		if svc.Restricted = r.IntN(3) == 0; svc.Restricted {
			for range r.IntN(3) {
				svc.Sources = append(svc.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(64 * r.IntN(4))}), 26))
			}
		}
		for j, protocol := range []ipvs.Protocol{ipvs.TCP, ipvs.UDP} {
			if r.IntN(4) > 0 {
				svc.Ports = append(svc.Ports, view.Port{Name: fmt.Sprint(j), Protocol: protocol, Port: uint16(80 + r.IntN(3))})
			}
		}
		v.Services[key] = svc
	case 4, 5:
		slice := view.Slice{Ports: []view.Port{{Name: "0", Protocol: ipvs.TCP, Port: 8080}, {Name: "1", Protocol: ipvs.UDP, Port: 5353}}}
		for range r.IntN(4) {
			node := []string{"a", "b"}[r.IntN(2)]
			slice.Endpoints = append(slice.Endpoints, view.Endpoint{
				Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + r.IntN(6))}), Node: node, Ready: true, Serving: true})
		}
		v.Slices[key] = map[string]view.Slice{"s": slice}
	case 6:
		name := addr.String()
		if r.IntN(4) == 0 {
			delete(v.VIPs, name)
		} else {
			services := []pools.ServiceKey{key, {Namespace: "default", Name: fmt.Sprint("s", (i+4)%6)}}
			v.VIPs[name] = view.VIP{Addresses: []netip.Addr{addr}, Services: services, Nodes: []string{[]string{"a", "b"}[r.IntN(2)], "a"}}
		}
		return view.Touched{VIPs: map[string]struct{}{name: {}}}
	case 7:
		v.Nodes["b"] = view.Node{Addresses: v.Nodes["b"].Addresses, Labels: map[string]string{"zone": fmt.Sprint(r.IntN(2))}}
		return view.Touched{Nodes: map[string]struct{}{"b": {}}}
	}
	return touched
}

// harm makes a change that another program might make.
func harm(r *rand.Rand, f *fixture) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.harmed = true
	switch r.IntN(5) {
	case 4:
		f.tunnels.have = ipvs.Direct{}
	case 0:
		f.kernel.Flush()
	case 1:
		f.filter = nil
	case 2:
		for addr := range f.addrs {
			delete(f.addrs, addr)
			break
		}
	case 3:
		f.internal.Flush()
	}
}

// Changes, failures and deletions occur in any order, and the process may restart. The required order of changes holds,
// only differences from the plan are changed, and in the end the node is as planned.
func TestFollowsAnyHistory(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				f := newFixture(t)
				f.dice = rand.New(rand.NewPCG(seed, 6))
				c := &cluster{view: directView(), synced: true}
				run := start(t, f, c)
				for range 15 {
					destroys := r.IntN(2) == 0
					f.mu.Lock()
					f.chance = []int{0, 0, 200, 900}[r.IntN(4)]
					f.mu.Unlock()
					for range 1 + r.IntN(8) {
						roll := rand.New(rand.NewPCG(r.Uint64(), 7))
						run.touch(func(v *view.View) view.Touched { return change(roll, v) })
						if r.IntN(2) == 0 {
							synctest.Wait()
						}
						if r.IntN(8) == 0 {
							run.killB(r.IntN(2) == 0)
						}
						if destroys && r.IntN(6) == 0 {
							harm(r, f)
						}
					}
					if r.IntN(4) == 0 && !f.harmed { // otherwise the record of what IronLB owns may be lost
						run.stop()
						f.restart()
						c.touched.All = true
						run = start(t, f, c)
					}
					f.mu.Lock()
					f.chance = 0
					f.mu.Unlock()
					time.Sleep(dataplane.AddressesEvery + 3*retryMax)
					f.mu.Lock()
					f.harmed = false
					f.mu.Unlock()
					run.wantPlanned(t)
					if t.Failed() {
						t.Fatalf("log:\n%s", run.log)
					}
				}
				run.stop()
			})
		})
	}
}
