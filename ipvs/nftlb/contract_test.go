package nftlb_test

import (
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// driver makes every call of a Balancer in its namespace.
type driver struct {
	*nftlb.Balancer
	space *netspace.Space
}

func open(t testing.TB, space *netspace.Space, scope nftlb.Scope) driver {
	t.Helper()
	d := driver{space: space}
	space.Must(t, func() (err error) {
		d.Balancer, err = nftlb.New(scope)
		return err
	})
	t.Cleanup(d.Close)
	return d
}

func (d driver) Probe(scheduler string) error {
	return d.space.Do(func() error { return d.Balancer.Probe(scheduler) })
}

func (d driver) List() (table ipvs.Table, err error) {
	err = d.space.Do(func() (err error) {
		table, err = d.Balancer.List()
		return err
	})
	return table, err
}

func (d driver) ListOf(addrs map[netip.Addr]struct{}) (table ipvs.Table, err error) {
	err = d.space.Do(func() (err error) {
		table, err = d.Balancer.ListOf(addrs)
		return err
	})
	return table, err
}

func (d driver) Virtuals() (virtuals map[ipvs.Key]ipvs.Settings, err error) {
	err = d.space.Do(func() (err error) {
		virtuals, err = d.Balancer.Virtuals()
		return err
	})
	return virtuals, err
}

func (d driver) Apply(ops []ipvs.Op) (done []ipvs.Op, err error) {
	err = d.space.Do(func() (err error) {
		done, err = d.Balancer.Apply(ops)
		return err
	})
	return done, err
}

func (d driver) SetPods(prefixes ...netip.Prefix) error {
	return d.space.Do(func() error { return d.Balancer.SetPods(ipvs.PodSources{Prefixes: prefixes}) })
}

// TestContract checks the contract of all drivers.
func TestContract(t *testing.T) {
	for name, scope := range map[string]nftlb.Scope{"all": nftlb.AllTraffic, "internal": nftlb.ClusterInternal} {
		t.Run(name, func(t *testing.T) {
			ipvstest.Contract(t, func(t *testing.T) ipvstest.Driver { return open(t, netspace.New(t), scope) })
		})
	}
}

// withoutAffinity is a driver that is restarted before each call.
type withoutAffinity struct {
	t     *testing.T
	space *netspace.Space
}

func (f withoutAffinity) Probe(scheduler string) error {
	return open(f.t, f.space, nftlb.AllTraffic).Probe(scheduler)
}

func (f withoutAffinity) List() (ipvs.Table, error) {
	return open(f.t, f.space, nftlb.AllTraffic).List()
}

func (f withoutAffinity) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return open(f.t, f.space, nftlb.AllTraffic).ListOf(addrs)
}

func (f withoutAffinity) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	return open(f.t, f.space, nftlb.AllTraffic).Virtuals()
}

func (f withoutAffinity) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	return open(f.t, f.space, nftlb.AllTraffic).Apply(ops)
}

// TestContractAcrossRestarts: no state is kept only in process memory.
func TestContractAcrossRestarts(t *testing.T) {
	ipvstest.Contract(t, func(t *testing.T) ipvstest.Driver { return withoutAffinity{t, netspace.New(t)} })
}
