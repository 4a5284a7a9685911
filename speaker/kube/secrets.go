package kube

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// lazySecrets are the Secrets of BGPPeers. They are not read before a BGPPeer names one.
type lazySecrets struct {
	optionalKind
	namespace string
	informer  cache.SharedIndexInformer

	needed chan struct{}
	once   sync.Once
}

// secretsState is how far Secrets are known.
type secretsState struct {
	namespace string
	// unread is set while the API server has not answered; nobody asks it before they are needed.
	unread bool
	// refused is what it said if it refuses.
	refused string
}

// need has them read from now on.
func (l *lazySecrets) need() {
	if l != nil {
		l.once.Do(func() { close(l.needed) })
	}
}

// isNeeded tells whether a BGPPeer that is put names one: it was told before that was put.
func (l *lazySecrets) isNeeded() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.needed:
		return true
	default:
		return false
	}
}

func (l *lazySecrets) state() secretsState {
	if l == nil {
		return secretsState{}
	}
	if l.synced() {
		return secretsState{namespace: l.namespace}
	}
	refused := l.refused.why()
	return secretsState{namespace: l.namespace, unread: refused == "", refused: refused}
}

// run reads them when they are needed, and kicks when they are in.
func (l *lazySecrets) run(ctx context.Context, kick func()) {
	if l == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-l.needed:
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), l.synced) {
		kick()
	}
	wg.Wait()
}
