package speaker

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// quickBGP counts the routes of the last change.
type quickBGP struct{ routes int }

func (q *quickBGP) Set(c routes.Change)                 { q.routes = len(c.Routes) }
func (q *quickBGP) Sessions() map[string]routes.Session { return nil }

// BenchmarkOneRoute measures one reconcile, including the observation of the node, after the only endpoints of one
// Service were removed or returned. Its route is published to two routers.
func BenchmarkOneRoute(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint("addresses=", n), func(b *testing.B) {
			v := many(n)
			clear(v.VIPs)
			withBGP(v)
			v.Nodes["a"] = view.Node{Addresses: []netip.Addr{netip.MustParseAddr("2001:db8:9::1")}}
			for key, svc := range v.Services {
				svc.Local = true
				v.Services[key] = svc
			}
			s, source := quickSpeaker(v)
			reported := &quickBGP{}
			s.cfg.BGP = reported
			s.cfg.Plan.BGP = true
			s.planner = plan.NewPlanner(s.cfg.Plan)
			if err := s.reconcile(b.Context()); err != nil || reported.routes < n {
				b.Fatalf("%d routes: %v", reported.routes, err)
			}
			key := named("s7")
			slice := source.view.Slices[key]["s"]
			all := slices.Clone(slice.Endpoints)
			runtime.GC() // collect garbage of the setup
			for i := 0; b.Loop(); i++ {
				if slice.Endpoints = nil; i%2 == 1 {
					slice.Endpoints = all
				}
				source.view.Slices[key]["s"] = slice
				source.touched.Services = map[pools.ServiceKey]struct{}{key: {}}
				reported.routes = 0
				if err := s.reconcile(b.Context()); err != nil || reported.routes != 1 {
					b.Fatalf("%d routes: %v", reported.routes, err)
				}
			}
		})
	}
}
