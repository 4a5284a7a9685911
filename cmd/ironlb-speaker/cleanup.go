package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ironlb/ironlb/ipvs/direct"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/ipvs/returnroute"
	"github.com/ironlb/ironlb/speaker"
)

// cleanup removes the residual state of earlier runs on this node, including their files in stateDir. It logs each
// removal and, at the end, their number. It needs CAP_NET_ADMIN and no API server. Without residual state it succeeds.
func cleanup(ctx context.Context, stateDir string, log *slog.Logger) error {
	removed := &atomic.Int64{}
	counted := slog.New(counter{log.Handler(), removed})
	err := errors.Join(cleanKernel(ctx, counted), removeState(stateDir, counted))
	if err == nil {
		log.Info("cleanup complete", "removed", removed.Load())
	}
	return err
}

func cleanKernel(ctx context.Context, log *slog.Logger) error {
	c := newConfig()
	c.Dataplane = dataplaneIPVS
	node, closeNode, err := openNode(c, log, nil)
	if err != nil {
		return err
	}
	defer closeNode()
	before, err := ourTables(ctx)
	if err != nil {
		return err
	}
	node.ClusterInternal = nil // its tables are removed entirely
	if err := speaker.Cleanup(ctx, node, log); err != nil {
		return err
	}
	_, allTraffic := removeBalancer(nftlb.AllTraffic)
	_, clusterInternal := removeBalancer(nftlb.ClusterInternal)
	after, err := ourTables(ctx)
	for _, table := range before {
		if err == nil && !slices.Contains(after, table) {
			log.Info("delete nftables table", "table", table, "reason", "Cleanup")
		}
	}
	return errors.Join(allTraffic, clusterInternal, err, nft.Policies{}.Remove(ctx))
}

// ourTables lists IronLB's nftables tables, as "ip ironlb". Without the program nft there are none.
func ourTables(ctx context.Context) (tables []string, err error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "tables").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w: %s", err, strings.TrimSpace(string(out)))
	}
	names := []string{nft.TableName, direct.TableName, returnroute.TableName, nftlb.AllTraffic.Table(), nftlb.ClusterInternal.Table()}
	for line := range strings.Lines(string(out)) {
		// "table ip ironlb"
		if fields := strings.Fields(line); len(fields) == 3 && slices.Contains(names, fields[2]) {
			tables = append(tables, fields[1]+" "+fields[2])
		}
	}
	return tables, nil
}

// counter counts the log records of level info.
type counter struct {
	slog.Handler
	n *atomic.Int64
}

func (c counter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelInfo {
		c.n.Add(1)
	}
	return c.Handler.Handle(ctx, r)
}

func (c counter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return counter{c.Handler.WithAttrs(attrs), c.n}
}

func (c counter) WithGroup(name string) slog.Handler { return counter{c.Handler.WithGroup(name), c.n} }
