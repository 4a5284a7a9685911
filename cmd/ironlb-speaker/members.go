package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/view"
)

// meet creates the detector of the other speakers.
func (p *process) meet() error {
	keys, err := readKeys(p.keyFile)
	if err != nil {
		return err
	}
	if p.retained, err = p.link.Retained(); err != nil {
		return err
	}
	f := p.config.Failover
	cluster, authorities, err := f.cluster(p.apiserver)
	if err != nil {
		return err
	}
	p.findUnreachable()
	p.members, err = member.New(member.Options{
		Node: p.nodeName, Cluster: cluster, Authorities: authorities, Keys: keys, Profile: f.Profile, Port: f.Port,
		Log: p.log, Wake: p.trigger.Now, Metrics: p.registry, Scheduled: p.api.Node.ReportScheduling, Retained: len(p.retained) > 0,
		Broadcast: f.Broadcast, Received: p.received,
	})
	if err != nil {
		return fmt.Errorf("find the other speakers (--key-file %s): %w", p.keyFile, err)
	}
	p.api.Status.While(p.members.Fresh)
	p.run(p.members.Run)
	p.run(func(ctx context.Context) error { return followKeys(ctx, p.log, p.keyFile, keys, p.members.SetKeys) })
	p.run(func(ctx context.Context) error {
		return f.follow(ctx, p.log, p.apiserver, authorities, p.members.SetAuthorities)
	})
	return nil
}

// findUnreachable creates the prober of unreachable nodes, and of hosts where no speaker is received. If that fails the
// speaker runs without one.
func (p *process) findUnreachable() {
	prober, err := reach.New(reach.Options{
		Log: p.log, Wake: p.trigger.Now, Metrics: reach.NewMetrics(p.registry),
		MACs:   func() map[[6]byte]string { return p.members.MACs() },
		Silent: func(interfaces map[string]view.Answers) { p.members.SetAnswers(interfaces) },
	})
	if err != nil {
		p.log.Error("cannot probe nodes and hosts; unreachable endpoints are left to Kubernetes", "error", err)
		return
	}
	p.reach = prober
	p.run(prober.Run)
}

// received passes on what this node receives.
func (p *process) received(now member.Reception) {
	if p.reach != nil {
		p.reach.SetReceived(now.Nodes, now.Observer, now.Silent)
	}
}

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

// keysEvery is the interval between reads of the key file: a Secret's files are updated after about a minute.
const keysEvery = 10 * time.Second

// readKeys returns the shared keys of the speakers: one per line, the signing one first.
func readKeys(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no key that the speakers share (--key-file): %w: make one with \"head -c 32 /dev/urandom | base64\" and give it "+
			"to all of them, as Secret ironlb-speaker-keys in the cluster", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys that the speakers share (--key-file): %w", err)
	}
	var keys [][]byte
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s (--key-file) holds no key: write one to a line, as \"head -c 32 /dev/urandom | base64\" makes it", path)
	}
	return keys, nil
}

// followKeys passes on the keys when the file has others, until ctx ends. An error is logged once; the previous keys
// stay in use.
func followKeys(ctx context.Context, log *slog.Logger, path string, keys [][]byte, set func([][]byte) error) error {
	ticker := time.NewTicker(keysEvery)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := readKeys(path)
		if err == nil {
			if slices.EqualFunc(now, keys, bytes.Equal) {
				failed = ""
				continue
			}
			err = set(now)
		}
		switch {
		case err == nil:
			log.Info("change the keys that the speakers share", "keys", len(now))
			keys, failed = now, ""
		case err.Error() != failed:
			log.Error("cannot change the keys that the speakers share; those before stay in use", "error", err)
			failed = err.Error()
		}
	}
}
