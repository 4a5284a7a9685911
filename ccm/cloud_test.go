package ccm

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironlb/ironlb/ccm/allocation"
	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// TestCloudIsALoadBalancerOnly: no support for nodes, routes or zones, which would taint or delete bare-metal nodes.
func TestCloudIsALoadBalancerOnly(t *testing.T) {
	c := &Cloud{services: &allocation.Controllers{}}
	if _, ok := c.LoadBalancer(); !ok {
		t.Error("no load balancer")
	}
	_, instances := c.Instances()
	_, instancesV2 := c.InstancesV2()
	_, zones := c.Zones()
	_, clusters := c.Clusters()
	_, routes := c.Routes()
	if instances || instancesV2 || zones || clusters || routes {
		t.Error("it is more than a load balancer")
	}
	if !c.HasClusterID() || c.ProviderName() != ProviderName {
		t.Error("the app would not start")
	}
	for name := range Controllers() {
		if !slices.Contains([]string{"service-lb-controller", PoolController, ClassController, PlacementController, BGPController}, name) {
			t.Errorf("there is a controller %s", name)
		}
	}
}

// TestReady: a leader is ready once recorded addresses are adopted, and healthy while its loops tick.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := allocation.NewLedger(slog.New(slog.DiscardHandler), &servicerecord.Scope{})
		c := &Cloud{liveness: loop.NewLiveness(), services: &allocation.Controllers{Ledger: l}}
		if err := c.ready(t.Context()); err == nil {
			t.Error("ready before it leads")
		}
		c.leads.Store(true)
		if err := c.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "not adopted") {
			t.Errorf("ready before adoption: %v", err)
		}
		l.Adopt(nil)
		if err := c.ready(t.Context()); err != nil {
			t.Error(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { done <- c.liveness.Wait(ctx, "idle", make(chan struct{})) }()
		time.Sleep(time.Hour)
		if err := c.liveness.Check(nil); err != nil {
			t.Errorf("a loop with nothing to do: %v", err)
		}
		cancel()
		if <-done {
			t.Error("triggered by the end")
		}
		c.liveness.Tick("stuck")
		time.Sleep(loop.StallLimit + time.Second)
		if err := c.liveness.Check(nil); err == nil || !strings.Contains(fmt.Sprint(err), "loop stalled for") {
			t.Errorf("got %v", err)
		}
	})
}
