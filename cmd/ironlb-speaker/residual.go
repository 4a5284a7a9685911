package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/speaker/dataplane"
)

// residual is the residual state of an earlier process in the data plane that is being replaced. It continues to
// forward until the new data plane is programmed, and then is removed.
type residual struct {
	log *slog.Logger
	// remove is nil when nothing is left. It may be called again after an error.
	remove func() error
	retry  time.Time
	logged string
}

// residualPause is the delay after a failed removal.
const residualPause = 10 * time.Second

// programmed removes the residual state: the new data plane forwards.
func (l *residual) programmed() {
	if l == nil || l.remove == nil || time.Now().Before(l.retry) {
		return
	}
	err := l.remove()
	if err == nil {
		l.remove = nil
		return
	}
	l.retry = time.Now().Add(residualPause)
	if text := err.Error(); text != l.logged {
		l.log.Error("what is left of the other data plane cannot be removed; trying again", "error", err)
		l.logged = text
	}
}

// leftInNFTables is the residual forwarding table of nftables, identified by its name.
func leftInNFTables(log *slog.Logger) *residual {
	return &residual{log: log, remove: func() error {
		virtuals, err := removeBalancer(nftlb.AllTraffic)
		if err == nil && virtuals > 0 {
			log.Info("delete nftables table", "table", nftlb.AllTraffic.Table(), "virtuals", virtuals, "reason", "DataplaneChanged")
		}
		return err
	}}
}

// ipvsTable is the IPVS table with residual and foreign virtual servers.
type ipvsTable interface {
	Virtuals() (map[ipvs.Key]ipvs.Settings, error)
	Apply([]ipvs.Op) ([]ipvs.Op, error)
	Close()
}

func loadedIPVS() (ipvsTable, error) {
	k, err := kernel.OpenLoaded()
	if err != nil {
		return nil, err
	}
	return k, nil
}

// leftInIPVS returns the residual virtual servers of IPVS that are provably IronLB's. A kernel that has not loaded IPVS
// has none. ours must be called before the node is changed: the filter identifies them only while the previous process
// was the last to change it.
func leftInIPVS(log *slog.Logger, open func() (ipvsTable, error), ours func() (func(ipvs.Key) bool, error)) (*residual, error) {
	k, err := open()
	if errors.Is(err, ipvs.ErrNoModule) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	virtuals, err := k.Virtuals()
	if err != nil || len(virtuals) == 0 {
		k.Close()
		return nil, err
	}
	mine, err := ours()
	if err != nil {
		k.Close()
		return nil, err
	}
	var keys []ipvs.Key
	for _, key := range slices.SortedFunc(maps.Keys(virtuals), ipvs.Key.Compare) {
		if mine(key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		k.Close()
		return nil, nil
	}
	return &residual{log: log, remove: func() error {
		if err := removeVirtuals(k, keys, log); err != nil {
			return err
		}
		k.Close()
		return nil
	}}, nil
}

// removeVirtuals deletes virtual servers of IPVS. With the next packet of such a connection the kernel deletes it, and
// its conntrack entry, because expire_nodest_conn is 1 (ip_vs_in, ip_vs_conn_drop_conntrack): so datagrams continue.
func removeVirtuals(k ipvsTable, keys []ipvs.Key, log *slog.Logger) error {
	ops := make([]ipvs.Op, len(keys))
	for i, key := range keys {
		ops[i] = ipvs.Op{Action: ipvs.DeleteVirtual, Virtual: key}
	}
	done, err := k.Apply(ops)
	for _, op := range done {
		log.Info(op.Action.String(), "virtual", op.Virtual, "in", "IPVS", "reason", "DataplaneChanged")
	}
	if err != nil {
		return fmt.Errorf("remove our virtual servers from IPVS: %w", err)
	}
	return nil
}

// oursIn returns a function that identifies IronLB's virtual servers by the node's current state: their address has
// IronLB's route, or its filter contains their address or themselves.
func oursIn(addresses dataplane.Addresses, filter dataplane.Filter) (func(ipvs.Key) bool, error) {
	addrs, _, err := addresses.List()
	if err != nil {
		return nil, err
	}
	elements, err := filter.List(context.Background())
	if err != nil {
		return nil, err
	}
	return func(key ipvs.Key) bool {
		_, local := addrs[key.Addr]
		_, named := elements[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: key.Addr}}]
		_, served := elements[ipvs.Element{Set: ipvs.Served, Key: key}]
		return local || named || served
	}, nil
}

// removeBalancer removes the forwarding tables of nftables, and returns the number of their virtual servers. Without
// the program nft there are none.
func removeBalancer(scope nftlb.Scope) (virtuals int, err error) {
	b, err := nftlb.New(scope)
	if errors.Is(err, nftlb.ErrNoCommand) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer b.Close()
	have, err := b.Virtuals()
	if err == nil {
		err = b.Remove()
	}
	if err != nil {
		return 0, fmt.Errorf("remove the nftables table %s: %w", scope.Table(), err)
	}
	return len(have), nil
}
