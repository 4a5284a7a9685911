package loop

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/tools/cache"
)

// WaitSynced waits for the caches and logs a remediation if that takes long. False: ctx ended.
func WaitSynced(ctx context.Context, log *slog.Logger, synced []cache.InformerSynced) bool {
	slow := time.AfterFunc(15*time.Second, func() {
		log.Error("waiting for the initial lists of Services, Nodes or ironlb.io objects: no address is assigned until then",
			"remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	})
	defer slow.Stop()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}
