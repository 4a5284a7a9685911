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
	tx := d.replaceGuard(of)
	kind, hook, priority := knftables.FilterType, knftables.PreroutingHook, knftables.BaseChainPriority("-301")
	tx.Add(&knftables.Table{Family: of.name, Name: guardTable})
	tx.Add(&knftables.Chain{Family: of.name, Table: guardTable, Name: "prerouting", Type: &kind, Hook: &hook, Priority: &priority})
	tx.Add(&knftables.Rule{Family: of.name, Table: guardTable, Chain: "prerouting", Rule: fmt.Sprintf("udp dport %d drop", d.cfg.Port)})
	if err := d.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", of.name, guardTable, err)
	}
	return nil
}

// unguard deletes the guard, also that of an earlier process.
func (d *Driver) unguard(ctx context.Context, of family) error {
	if err := d.nft.Run(ctx, d.replaceGuard(of)); err != nil {
		return fmt.Errorf("delete nftables table %s %s: %w", of.name, guardTable, err)
	}
	return nil
}

// replaceGuard deletes the table, whether or not it exists.
func (d *Driver) replaceGuard(of family) *knftables.Transaction {
	tx := d.nft.NewTransaction()
	tx.Add(&knftables.Table{Family: of.name, Name: guardTable})
	tx.Delete(&knftables.Table{Family: of.name, Name: guardTable})
	return tx
}
