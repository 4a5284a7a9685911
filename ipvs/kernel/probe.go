package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironlb/ironlb/ipvs"
)

// probeKey is the temporary virtual server of Probe, on the network address of a documentation range (RFC 5737): no
// Service can have it. kube-proxy tests with port 20000 of the same address; that one is not IronLB's.
var probeKey = ipvs.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Protocol: ipvs.TCP, Port: 7473}

// Probe checks whether this namespace supports a virtual server with the scheduler, by adding one, reading it back and
// deleting it. Reading back shows that the kernel has really accepted it.
//
// The error wraps [ipvs.ErrNoModule], [ipvs.ErrNoScheduler] or [ipvs.ErrPermission] and includes the remediation.
func (k *Kernel) Probe(scheduler string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	settings := ipvs.Settings{Scheduler: scheduler}
	if err := k.one(ipvs.Op{Action: ipvs.AddVirtual, Virtual: probeKey, Settings: settings}); err != nil {
		return fmt.Errorf("probe IPVS: %w", err)
	}
	listed, err := k.conn.settings(probeKey)
	deleteErr := k.one(ipvs.Op{Action: ipvs.DeleteVirtual, Virtual: probeKey})
	if err != nil {
		return fmt.Errorf("probe IPVS: read back %v: %w", probeKey, explain(err))
	}
	if listed.Scheduler != scheduler {
		return fmt.Errorf("probe IPVS: %w: wrote %v %s, read back %v", ipvs.ErrNoModule, probeKey, scheduler, listed)
	}
	if deleteErr != nil && !errors.Is(deleteErr, ipvs.ErrNoVirtual) {
		return fmt.Errorf("probe IPVS: %w", deleteErr)
	}
	return nil
}
