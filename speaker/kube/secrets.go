package kube

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// lazySecrets are the Secrets of BGPPeers. They are not read before a BGPPeer references one.
type lazySecrets struct {
	optionalKind
	namespace string
	informer  cache.SharedIndexInformer

	needed chan struct{}
	once   sync.Once
}

// secretsState is the read state of the Secrets.
type secretsState struct {
	namespace string
	// unread is set while the API server has not responded; there is no request before they are needed.
	unread bool
	// refused is the API server's message if it refuses.
	refused string
}

// need starts reading the Secrets.
func (l *lazySecrets) need() {
	if l != nil {
		l.once.Do(func() { close(l.needed) })
	}
}

// isNeeded reports whether a BGPPeer references a Secret. need is called before such a peer is put.
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

// run reads the Secrets when they are needed, and triggers the loop when they are in.
func (l *lazySecrets) run(ctx context.Context, trigger func()) {
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
		trigger()
	}
	wg.Wait()
}
