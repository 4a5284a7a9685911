package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"
)

// guardTable drops what comes through the tunnels of a node until its rules exist: the second tier would take segments
// of connections of other nodes, and its Pods would reset these.
const guardTable = TableName + "-guard"

// lacksTunnels reports whether this node has no tunnels yet.
func (d *Driver) lacksTunnels() bool {
	_, err := d.link.LinkByName(Device1)
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

// guard adds the guard.
func (d *Driver) guard(ctx context.Context, of family) error {
	d.guarded = true
	kind, hook, priority := knftables.FilterType, knftables.PreroutingHook, knftables.BaseChainPriority("-301")
	base := &knftables.Chain{
		Family: of.name, Table: guardTable, Name: "prerouting", Type: &kind, Hook: &hook, Priority: &priority,
	}
	drop := fmt.Sprintf("udp dport %d drop", d.cfg.Port)
	tx := d.nft.NewTransaction()
	tx.Add(&knftables.Table{Family: of.name, Name: guardTable})
	tx.Add(base)
	tx.Flush(base) // that of an earlier process
	tx.Add(&knftables.Rule{Family: of.name, Table: guardTable, Chain: base.Name, Rule: drop})
	if err := d.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", of.name, guardTable, err)
	}
	return nil
}

// unguard deletes the guard, also that of an earlier process.
func (d *Driver) unguard(ctx context.Context, of family) error {
	tx := d.nft.NewTransaction()
	tx.Delete(&knftables.Table{Family: of.name, Name: guardTable})
	if err := d.nft.Run(ctx, tx); err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("delete nftables table %s %s: %w", of.name, guardTable, err)
	}
	d.guarded = false
	return nil
}

// unguardAll deletes the guards of both families.
func (d *Driver) unguardAll(ctx context.Context) error {
	var errs []error
	for _, f := range families {
		errs = append(errs, d.unguard(ctx, f))
	}
	return errors.Join(errs...)
}
