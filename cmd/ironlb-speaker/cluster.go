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

// defaultCluster is the name in the datagrams of clusters that were given none.
const defaultCluster = "ironlb"

// cluster returns the name by which the speakers of a cluster know one another, and where none was given the digests of
// its certificate authority, which keep clusters of the default name apart.
func (f failover) cluster(apiserver *rest.Config) (name string, authorities []uint64, err error) {
	if f.Cluster != "" {
		return f.Cluster, nil, nil
	}
	authorities, err = readAuthorities(apiserver)
	return defaultCluster, authorities, err
}

// readAuthorities returns the digests of the certificates that the API server's may be signed by: several while they
// are rotated, none where the configuration names none.
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

// follow hands over the certificate authority's digests when its file has others, until ctx ends. A file that cannot be
// read is as it was.
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
