package ccm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/rare"
)

var (
	seed  = flag.Uint64("seed", 0, "of the crash tests; 0: another one each time")
	kills = flag.Int("kills", 16, "how often ironlb-ccm is killed; a quarter as often with two replicas")
)

const (
	actors     = 4
	toBeServed = time.Minute // from the last start until the final state
)

// TestCrash kills ironlb-ccm at random times while Services are created, moved, shared, deleted, made ClusterIP and
// back, and pools change. Two Services must never hold one address, and no address may change unrequested. In the end
// every Service that can have an address has one.
func TestCrash(t *testing.T) {
	t.Run("one replica", func(t *testing.T) {
		rare.Test(t)
		crash(t, *kills, func(c *cluster) {
			for k := range *kills {
				p := c.startCCM(firstPort, alone)
				c.wait(k)
				c.must(p.Kill())
			}
			c.startCCM(firstPort, alone)
		})
	})
	t.Run("two replicas", func(t *testing.T) {
		elect := []string{"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=300ms"}
		crash(t, *kills/4, func(c *cluster) {
			replicas := [2]*rig.CCM{}
			for i := range replicas {
				replicas[i] = c.startCCM(firstPort+i, elect...)
			}
			for k := range *kills / 4 {
				c.wait(k)
				i := c.rand.IntN(len(replicas))
				c.must(replicas[i].Kill())
				replicas[i] = c.startCCM(firstPort+i, elect...)
			}
		})
	})
}

// cluster holds the state of one crash test.
type cluster struct {
	*fixture
	checker *checker
	rand    *rand.Rand
}

// crash runs the load during the kills and checks the result.
func crash(t *testing.T, kills int, kill func(*cluster)) {
	seed := *seed
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("go test ./test/ccm -run '%s' -args -seed %d", t.Name(), seed)
	c := &cluster{fixture: use(t, ""), rand: rand.New(rand.NewPCG(seed, 0))}
	ctx := t.Context() // without a limit: there may be many kills
	c.apply(poolYAML(poolMain, 0) + poolYAML(poolSmall, 0))
	services, events, err := c.Follow(ctx, metav1.NamespaceAll)
	c.must(err)
	c.checker = newChecker(services)
	go c.checker.follow(events)

	load, stop := context.WithCancel(ctx)
	group, load := errgroup.WithContext(load)
	defer group.Wait() // on a failure, too
	defer stop()
	for i := range actors {
		a := &actor{
			rig: c.Rig, rand: rand.New(rand.NewPCG(seed, uint64(i+2))), namespace: fmt.Sprintf("crash-%d", i),
			shared: entries[poolMain][0].Addr().Next(), // the same for all: one namespace holds it
		}
		if i%2 == 1 {
			a.shared = netip.MustParseAddr("192.0.2.7")
		}
		c.must(c.Namespace(ctx, a.namespace))
		group.Go(func() error { return a.run(load) })
	}
	group.Go(func() error { return changePools(load, c.Rig, rand.New(rand.NewPCG(seed, 1))) })

	kill(c)
	stop()
	c.must(group.Wait())
	c.must(c.Apply(ctx, poolYAML(poolMain, 0)+poolYAML(poolSmall, 0)))
	c.allServed()
	faults, changes := c.checker.verdict()
	for _, f := range faults {
		t.Error(f)
	}
	t.Logf("%d changes of addresses seen", changes)
	if changes < kills {
		t.Errorf("only %d changes of addresses in %d kills: too few to prove anything", changes, kills)
	}
}

func (c *cluster) startCCM(port int, flags ...string) *rig.CCM {
	c.Helper()
	p, err := c.StartCCM(c.Context(), port, flags...)
	c.must(err)
	return p
}

// wait waits for the k-th kill. Every other kill follows a number of address changes at once, while others are in
// progress. The rest follow a random time, which may be before the program is ready.
func (c *cluster) wait(k int) {
	limit, changes := 4*time.Second, 1+c.rand.IntN(40)
	if k%2 == 0 {
		limit, changes = time.Duration(c.rand.Int64N(int64(1200*time.Millisecond))), -1
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for changes != 0 {
		select {
		case <-c.checker.next():
			changes--
		case <-timer.C:
			return
		}
	}
}

// allServed waits until all Services are in their final state.
func (c *cluster) allServed() {
	c.Helper()
	check := func(context.Context) error {
		list, err := c.Kube.CoreV1().Services(metav1.NamespaceAll).List(c.Context(), metav1.ListOptions{})
		c.must(err)
		if bad := wrong(list.Items); len(bad) > 0 {
			return errors.New("\n" + strings.Join(bad, "\n"))
		}
		c.Logf("%d Services, all as they must be", len(list.Items))
		return nil
	}
	if err := eventually.Poll(c.Context(), 200*time.Millisecond, toBeServed, "all Services", check); err != nil {
		c.Error(err)
	}
}
