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
	"github.com/ironlb/ironlb/speaker"
)

// leftover is what an earlier process of ours made in the data plane that another takes the place of. It goes on forwarding until the
// new one is programmed and is removed then.
type leftover struct {
	log *slog.Logger
	// remove is nil when nothing is left. It may be called again after an error.
	remove func() error
	retry  time.Time
	said   string
}

// leftoverRest is how long to wait after a removal that failed.
const leftoverRest = 10 * time.Second

// programmed removes it: the new data plane forwards.
func (l *leftover) programmed() {
	if l == nil || l.remove == nil || time.Now().Before(l.retry) {
		return
	}
	err := l.remove()
	if err == nil {
		l.remove = nil
		return
	}
	l.retry = time.Now().Add(leftoverRest)
	if text := err.Error(); text != l.said {
		l.log.Error("what is left of the other data plane cannot be removed; trying again", "error", err)
		l.said = text
	}
}

// leftInNFTables is the table of nftables that forwards, which is ours by its name.
func leftInNFTables(log *slog.Logger) *leftover {
	return &leftover{log: log, remove: func() error {
		virtuals, err := removeBalancer(nftlb.Everyone)
		if err == nil && virtuals > 0 {
			log.Info("delete nftables table", "table", nftlb.Everyone.Table(), "virtuals", virtuals, "reason", "DataplaneChanged")
		}
		return err
	}}
}

// ipvsTable is what is left in IPVS, and by whomever else.
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

// leftInIPVS is those virtual servers of IPVS that are provably ours. A kernel that has not loaded IPVS has none. What is ours must be asked for
// before the node is changed: the filter names it as long as the process before was the last to change it.
func leftInIPVS(log *slog.Logger, open func() (ipvsTable, error), ours func() (func(ipvs.Key) bool, error)) (*leftover, error) {
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
	return &leftover{log: log, remove: func() error {
		if err := removeVirtuals(k, keys, log); err != nil {
			return err
		}
		k.Close()
		return nil
	}}, nil
}

// removeVirtuals deletes virtual servers of IPVS. With the next packet of a client that went by way of them the kernel forgets its connection, and
// conntrack's, because expire_nodest_conn is 1 (ip_vs_in, ip_vs_conn_drop_conntrack): so datagrams go on.
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

// oursIn tells which virtual servers are ours by what the node holds now: our route leads to their address, or our filter names their
// address or themselves.
func oursIn(addresses speaker.Addresses, filter speaker.Filter) (func(ipvs.Key) bool, error) {
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

// removeBalancer removes the tables of nftables that forward, and tells how many virtual servers they had. Without the program nft there are none.
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
