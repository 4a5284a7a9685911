package main

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/conntrack"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/link"
)

// openNode returns the drivers of the node. Those that the node may lack are opened on first use, with retries until
// that succeeds: installing what is missing repairs a running speaker. chosen is called with the data plane.
func openNode(c config, log *slog.Logger, chosen func(dataplaneKind)) (speaker.Node, func(), error) {
	l, err := link.Open()
	if err != nil {
		return speaker.Node{}, nil, err
	}
	settings := &sysctls{serviceProxy: c.ServiceProxy, limits: c.Conntrack}
	filter, clusterInternal := &filter{dropPing: !c.AnswerPing}, &clusterInternal{}
	tunnels, returns := &tunnels{port: c.TunnelPort}, &returnRoutes{}
	servers := newVirtualServers(c, log, chosen, func() (func(ipvs.Key) bool, error) { return oursIn(l, filter) })
	settings.ipvs = servers.mayBeIPVS
	closeAll := func() {
		settings.met.Open(nil)
		servers.close()
		clusterInternal.close()
		tunnels.close()
		returns.close()
		filter.close()
		l.Close()
	}
	return speaker.Node{
		Drivers: dataplane.Drivers{
			VirtualServers:  servers,
			ClusterInternal: clusterInternal,
			Direct:          tunnels,
			ReturnRoutes:    returns,
			Filter:          filter,
			Addresses:       l,
			Sysctls:         settings,
			Conntrack:       connections{},
		},
		Retainer:   l,
		Blackholes: l,
	}, closeAll, nil
}

// connections are the kernel's connection tracking.
type connections struct{}

func (connections) Clean(ctx context.Context, table ipvs.Table) (int, error) {
	return conntrack.Clean(ctx, table)
}

// prepare does what requires more permissions than the speaker has: load modules and write to /proc/sys. A failure is
// logged and left to the speaker, which detects it again, reports it on /readyz and retries; an init container that
// failed would keep it from starting. IPv6 forwarding is enabled only on the operator's request: it is not known here
// whether a pool has such addresses, and a node that forwards is a router, which not every operator wants. The state
// programmed by an earlier speaker continues to forward, so none of it is changed here.
func prepare(c config, log *slog.Logger) {
	inIPVS := c.Dataplane != dataplaneNFTables
	if inIPVS {
		if err := probeKernel(c.Scheduler); err != nil {
			inIPVS = !errors.Is(err, ipvs.ErrNoModule)
			if !inIPVS && c.Dataplane == dataplaneAuto {
				log.Info("this kernel has no IPVS; dataplane auto uses nftables", "reason", err)
			} else {
				log.Error("cannot prepare IPVS", "error", err)
			}
		}
	}
	if c.ServiceProxy { // its sysctls exist once the module is loaded; they report an error
		_ = exec.Command("modprobe", "nf_conntrack").Run()
	}
	settings := &sysctls{ipvs: func() bool { return inIPVS }, serviceProxy: c.ServiceProxy, limits: c.Conntrack}
	changed, _ := settings.Apply(c.IPv6Forwarding)
	for _, setting := range changed {
		log.Info("set sysctl", "setting", setting)
	}
	if _, err := settings.state(); err != nil {
		log.Error("cannot set all sysctls", "error", err)
	}
}

// probeKernel loads the modules of IPVS and of the scheduler.
func probeKernel(scheduler string) error {
	k, err := kernel.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	return k.Probe(scheduler)
}
