package main

import (
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/speaker/member"
)

// defaultCluster is the cluster name in the datagrams if none is configured.
const defaultCluster = "ironlb"

// cluster returns the name that identifies the speakers of a cluster. If none is configured it also returns the digests
// of its certificate authority, which keep clusters with the default name apart.
func (f failover) cluster(apiserver *rest.Config) (name string, authorities []uint64, err error) {
	if f.Cluster != "" {
		return f.Cluster, nil, nil
	}
	authorities, err = readAuthorities(apiserver)
	return defaultCluster, authorities, err
}

// readAuthorities returns the digests of the certificates that may sign the API server's: several during a rotation,
// none if the configuration has none.
func readAuthorities(config *rest.Config) (authorities []uint64, err error) {
	tls := rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}}
	if err := rest.LoadTLSFiles(&tls); err != nil {
		return nil, fmt.Errorf("read the API server's certificate authority: %w", err)
	}
	for block, rest := pem.Decode(tls.CAData); block != nil; block, rest = pem.Decode(rest) {
		if key := member.AuthorityKey(block.Bytes); block.Type == "CERTIFICATE" && !slices.Contains(authorities, key) {
			authorities = append(authorities, key)
		}
	}
	return authorities, nil
}

// follow passes on the certificate authority's digests when its file has others, until ctx ends. An unreadable file
// counts as unchanged.
func (f failover) follow(
	ctx context.Context, log *slog.Logger, apiserver *rest.Config, have []uint64, set func([]uint64),
) error {
	if f.Cluster != "" {
		return nil
	}
	ticker := time.NewTicker(keysEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if now, err := readAuthorities(apiserver); err == nil && len(now) > 0 && !slices.Equal(now, have) {
			log.Info("the cluster's certificate authority has changed", "certificates", len(now))
			have = now
			set(now)
		}
	}
}
