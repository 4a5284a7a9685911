package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// guardTable drops what the rules of a family would direct, while they do not exist: without them the second tier takes
// segments of connections of other nodes, and its Pods reset these. A node that starts drops what comes through its
// tunnels, and one that repairs its tables what is for directed virtual servers; clients send it again.
const guardTable = TableName + "-guard"

// lacksTunnels reports whether this node has no tunnels yet.
func (d *Driver) lacksTunnels() bool {
	_, err := d.link.LinkByName(Device1)
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

// guard adds the guard of a family, or adds virtual servers to it.
func (d *Driver) guard(ctx context.Context, i int, directed []ipvs.Key) error {
	d.guarded[i] = true
	of := families[i]
	kind, hook, priority := knftables.FilterType, knftables.PreroutingHook, knftables.BaseChainPriority("-301")
	chain := knftables.Chain{Family: of.name, Table: guardTable, Name: "prerouting"}
	base := chain
	base.Type, base.Hook, base.Priority = &kind, &hook, &priority
	set := knftables.Set{Family: of.name, Table: guardTable, Name: setDirected, Type: of.words.Replace(keyType)}
	tx := d.nft.NewTransaction()
	tx.Add(&knftables.Table{Family: of.name, Name: guardTable})
	tx.Add(&set)
	tx.Add(&base)
	tx.Flush(&chain)
	for _, rule := range []string{fmt.Sprintf("udp dport %d drop", d.cfg.Port), key + " @" + setDirected + " drop"} {
		tx.Add(&knftables.Rule{Family: of.name, Table: guardTable, Chain: chain.Name, Rule: of.words.Replace(rule)})
	}
	batch := nftbatch.New(of.number, guardTable)
	for _, key := range directed {
		batch.Add(setDirected, nftbatch.Element{Key: nftbatch.VirtualServer(key)})
	}
	err := d.nft.Run(ctx, tx)
	if err == nil {
		err = batch.Send()
	}
	if err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", of.name, guardTable, err)
	}
	return nil
}

// endGuard ends the guard of a family that is programmed, except for tunnels that wait for the other family. outer is
// the family of the tunnels.
func (d *Driver) endGuard(ctx context.Context, i, outer int) error {
	if d.starting && i == outer {
		return d.release(ctx, i)
	}
	return d.unguard(ctx, i)
}

// release makes the guard of a family drop only what comes through the tunnels.
func (d *Driver) release(ctx context.Context, i int) error {
	tx := d.nft.NewTransaction()
	tx.Flush(&knftables.Set{Family: families[i].name, Table: guardTable, Name: setDirected})
	if err := d.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("change nftables table %s %s: %w", families[i].name, guardTable, err)
	}
	return nil
}

// unguard deletes the guard of a family, also that of an earlier process.
func (d *Driver) unguard(ctx context.Context, i int) error {
	tx := d.nft.NewTransaction()
	tx.Delete(&knftables.Table{Family: families[i].name, Name: guardTable})
	if err := d.nft.Run(ctx, tx); err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("delete nftables table %s %s: %w", families[i].name, guardTable, err)
	}
	d.guarded[i] = false
	return nil
}

// unguardAll deletes the guards of both families.
func (d *Driver) unguardAll(ctx context.Context) error {
	var errs []error
	for i := range families {
		errs = append(errs, d.unguard(ctx, i))
	}
	return errors.Join(errs...)
}
