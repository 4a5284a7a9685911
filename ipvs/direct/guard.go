package direct

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
)

// guardTable drops what the rules of a family would direct, and what is for the tunnels, while the rules do not exist:
// without them the second tier takes segments of connections of other nodes, and its Pods reset these. Clients send it
// again.
const guardTable = TableName + "-guard"

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
