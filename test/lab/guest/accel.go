package guest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// kvmTrial is the timeout of a trial boot with KVM; a working one takes two seconds.
const kvmTrial = 15 * time.Second

// chooseAccel returns "kvm" if a guest really boots with it, else "tcg". An accessible /dev/kvm is not enough: with
// some nested ones the guest never leaves the boot loader. The answer is kept until the machine reboots.
func chooseAccel(ctx context.Context, b booter, c Config) (string, error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		c.Log.Info("emulate the guest", "reason", err)
		return "tcg", nil
	}
	f.Close()
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	path, err := cacheDir("accel")
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if known, err := os.ReadFile(path); err == nil {
		if accel, ok := strings.CutPrefix(string(known), string(id)); ok {
			return accel, nil
		}
	}
	accel := "kvm"
	if err := trial(ctx, b, c); ctx.Err() != nil {
		return "", fmt.Errorf("try KVM: %w", ctx.Err())
	} else if err != nil {
		accel = "tcg"
		cause, _, _ := strings.Cut(err.Error(), ";")
		c.Log.Info("emulate the guest", "reason", cause)
	}
	return accel, os.WriteFile(path, append(id, accel...), 0o644)
}

func trial(ctx context.Context, b booter, c Config) error {
	c.Links, c.Shares, c.Programs, c.Accel, c.BootLimit = nil, nil, nil, "kvm", kvmTrial
	c.Log.Info("try KVM", "limit", c.BootLimit)
	g, err := b.boot(ctx, c)
	if err != nil {
		return err
	}
	return g.Close()
}
