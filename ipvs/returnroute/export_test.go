package returnroute

import (
	"context"

	"sigs.k8s.io/knftables"
)

// AfterTransaction has f called after each transaction of nftables.
func (d *Driver) AfterTransaction(f func()) { d.nft = followed{d.nft, f} }

type followed struct {
	knftables.Interface
	after func()
}

func (n followed) Run(ctx context.Context, tx *knftables.Transaction) error {
	err := n.Interface.Run(ctx, tx)
	n.after()
	return err
}
