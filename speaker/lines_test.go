package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// since returns the lines that the log got since the last call, without debug ones.
func (r *run) since() []string {
	synctest.Wait()
	text := r.log.String()
	lines := strings.Split(strings.TrimSuffix(text[r.logged:], "\n"), "\n")
	r.logged = len(text)
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.Contains(line, "level=DEBUG") })
}

// The log has a line for each cause, however many Services and addresses it concerns. Real servers have none.
func TestLines(t *testing.T) {
	const services, endpoints = 100, 10
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)}) }
	inBubble(t, func(t *testing.T) {
		f, v := newFixture(t), baseView()
		for i := range services {
			service(v, fmt.Sprintf("s%03d", i), address(i), []uint16{80, 443}, endpoints, "b", "a")
		}
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		expect := func(what string, want ...string) {
			t.Helper()
			time.Sleep(2 * auditEvery)
			got := r.since()
			t.Logf("%s: %d lines", what, len(got))
			ok := len(got) == len(want)
			for i := 0; ok && i < len(want); i++ {
				ok = strings.Contains(got[i], want[i])
			}
			if !ok {
				if len(got) > 12 {
					got = got[:12]
				}
				t.Errorf("%s: want %d lines\n%s\ngot\n%s", what, len(want), strings.Join(want, "\n"), strings.Join(got, "\n"))
			}
		}
		all := func(change func(*view.Slice)) {
			r.set(func(v *view.View) {
				for key, slices := range v.Slices {
					slice := slices["s"]
					slice.Endpoints = append([]view.Endpoint{}, slice.Endpoints...)
					change(&slice)
					v.Slices[key] = map[string]view.Slice{"s": slice}
				}
			})
		}
		expect("100 Services at the start", "publish full BGP state", `msg="BGP session not established" peer=near`, `msg="set filter"`,
			`msg="add virtual server" service="default/s000, default/s001, default/s002 and 97 more" times=200 settings=rr reason=Planned`, `msg="set peer" peer="far, near" times=2`)
		r.killB(true)
		expect("owner of 100 addresses dead", `msg=announce address="203.0.113.1, 203.0.113.2, 203.0.113.3 and 97 more" times=100 interfaces=[eth0] reason=OwnerLost`)
		r.set(func(v *view.View) {
			service(v, "web", netip.MustParseAddr("203.0.113.200"), []uint16{80, 443}, endpoints, "a")
		})
		expect("one Service created", `msg="add virtual server" service=default/web times=2 settings=rr reason=Planned`,
			`msg=announce address=203.0.113.200`, `msg="announce route" prefix=203.0.113.200/32`)
		for i := range endpoints {
			r.touchService("web", func(_ *view.Service, slice *view.Slice) {
				slice.Endpoints = slices.Clone(slice.Endpoints)
				slice.Endpoints[i].Addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
			})
			time.Sleep(time.Second)
		}
		expect("rolling update of one Service")
		all(func(s *view.Slice) { s.Endpoints = s.Endpoints[:endpoints-1] })
		expect("one endpoint of each of 101 Services gone")
		all(func(s *view.Slice) { s.Endpoints = nil })
		expect("no endpoint of 101 Services left", `level=INFO msg="Service outcome" service="default/s000, default/s001, default/s002 and 98 more" times=101 reason=NoEndpoint`)
		f.mu.Lock()
		f.kernel.Flush()
		f.mu.Unlock()
		expect("flush of IPVS", `msg="add virtual server" service="default/s000, default/s001, default/s002 and 98 more" times=202 settings=rr reason=Restored`)
		r.touch(func(v *view.View) view.Touched {
			v.Advertisements["all"] = view.Advertisement{Interfaces: []string{"eth9"}}
			return view.Touched{Advertisements: true}
		})
		expect("interface of 101 addresses missing", `msg=withdraw address="203.0.113.1, 203.0.113.2, 203.0.113.3 and 98 more" times=101 reason=NoInterface`, `level=WARN msg="interfaces missing" address="203.0.113.1, 203.0.113.10, 203.0.113.100 and 98 more" times=101 missing=[eth9] up=[eth0] reason=NoInterface`)
		if got := f.statuses["203.0.113.200"].Message; !strings.HasSuffix(got, ": interfaces names eth9; node a has eth0") {
			t.Errorf("the status is %q", got)
		}
		r.touch(func(v *view.View) view.Touched {
			v.Advertisements["all"] = view.Advertisement{}
			return view.Touched{Advertisements: true}
		})
		expect("interface named correctly", `msg=announce address="203.0.113.1, 203.0.113.2, 203.0.113.3 and 97 more" times=100`, `msg=announce address=203.0.113.200`)
		for _, s := range []routes.Session{{State: routes.SessionEstablished, PeerASN: 65001}, {State: routes.SessionIdle, Reason: routes.BFDWentDown, Changes: 1}} {
			f.bgp.mu.Lock()
			f.bgp.sessions = map[string]routes.Session{"far": s}
			f.bgp.mu.Unlock()
			r.trigger.Now()
			synctest.Wait()
		}
		expect("a BGP peer up and down", `msg="BGP session is up" peer=far`, `msg="BGP session is down" peer=far reason=BFDDown`)
		r.set(func(v *view.View) {
			delete(v.Services, pools.ServiceKey{Namespace: "default", Name: "web"})
			delete(v.VIPs, netip.MustParseAddr("203.0.113.200").String())
		})
		expect("one Service deleted", `msg="withdraw route" prefix=203.0.113.200/32`, "msg=withdraw address=203.0.113.200",
			`msg="delete virtual server" service=default/web times=2 reason=Planned`)
	})
}
