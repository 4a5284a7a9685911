package speaker

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
	"github.com/ironlb/ironlb/speaker/view"
)

// Work planned while the node could not be observed is done as soon as it can be, including health check ports and
// checks.
func TestNothingIsLostWhileTheNodeCannotBeSeen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.noModule = true
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		service(v, "via", vip2, []uint16{80}, 2, "a")
		change := func(name string, edit func(*view.Service)) {
			svc := v.Services[named(name)]
			edit(&svc)
			v.Services[named(name)] = svc
		}
		change("web", func(svc *view.Service) { svc.Local, svc.NodePorts, svc.HealthCheckNodePort = true, true, 30123 })
		change("via", func(svc *view.Service) { svc.Forwarding, svc.Ports[0].NodePort = view.ToNodePort, 30080 })
		b := v.Nodes["b"]
		b.Addresses = append(b.Addresses, vip1.Next().Next().Next())
		v.Nodes["b"] = b
		if d := plan.Make(v, options, time.Now()); len(d.HealthPorts) != 1 || len(d.Checks) != 1 {
			t.Fatalf("health ports %v, checks %v", d.HealthPorts, d.Checks)
		}
		r := start(t, f, &cluster{view: v, synced: true})
		defer r.stop()
		time.Sleep(time.Minute)
		f.mu.Lock()
		f.noModule = false
		f.mu.Unlock()
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}

// lateSource is a cluster in which a change arrives just after an observation.
type lateSource struct {
	Source
	after func()
}

func (s lateSource) Observe() (*view.View, view.Touched, bool) {
	v, touched, ok := s.Source.Observe()
	time.Sleep(time.Millisecond)
	s.after()
	time.Sleep(time.Millisecond)
	return v, touched, ok
}

type progressFunc func(before time.Time)

func (f progressFunc) Applied(before time.Time) { f(before) }
func (progressFunc) SetNode(bool)               {}

// A change that arrived after the View was observed is not reported as applied.
func TestProgressReportsOnlyObservedChanges(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		c := &cluster{view: baseView(), synced: true, trigger: NewTrigger()}
		var came time.Time
		applied := 0
		speaker := New(Config{
			NodeName: "a", Plan: options, Log: slog.New(slog.DiscardHandler), Trigger: c.trigger, Node: f.node(),
			Source:    lateSource{c, func() { came = time.Now() }},
			Announcer: f, Detector: quickDetector{}, Reporter: f, Metrics: NewMetrics(prometheus.NewRegistry()),
			Progress: progressFunc(func(before time.Time) {
				applied++
				if before.After(came) {
					t.Errorf("change at %v reported as applied, like all before %v", came, before)
				}
			}),
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := speaker.Run(ctx); err != nil || applied == 0 {
			t.Errorf("%v; %d times applied", err, applied)
		}
	})
}

// A driver that completed its work but returned an unrelated error once does not cause a lasting error.
func TestErrorWithNothingLeftToDo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		v := baseView()
		service(v, "web", vip1, []uint16{80}, 2, "a")
		c := &cluster{view: v, synced: true}
		r := start(t, f, c)
		defer r.stop()
		r.wantPlanned(t)
		r.touch(func(v *view.View) view.Touched {
			f.complains = true
			service(v, "web", vip1, []uint16{80, 81}, 2, "a")
			return view.Touched{Services: map[pools.ServiceKey]struct{}{named("web"): {}}}
		})
		synctest.Wait()
		if h := r.speaker.Health(); h.Ready {
			t.Error("ready in spite of the error")
		}
		time.Sleep(retryMax)
		r.wantPlanned(t)
	})
}
