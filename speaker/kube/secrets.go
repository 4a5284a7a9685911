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
	// unread is set while they are needed, and the API server has not answered.
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

func (l *lazySecrets) state() secretsState {
	if l == nil {
		return secretsState{}
	}
	select {
	case <-l.needed:
	default:
		return secretsState{namespace: l.namespace}
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
