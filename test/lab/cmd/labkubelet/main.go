// labkubelet is the part of a kubelet visible to the API server: it renews the node's Lease, keeps its Ready condition,
// and reports the status of the Pods bound to the node. The lab runs the Pods themselves.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "labkubelet:", err)
		os.Exit(1)
	}
}

func run() error {
	// Detect soon that the link to the API server was cut or restored.
	os.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "2")
	os.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "2")
	a := agent{trigger: make(chan struct{}, 1), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	kubeconfig := flag.String("kubeconfig", "", "credentials of the node")
	flag.StringVar(&a.node, "node", "", "name of the node")
	addresses := flag.String("addresses", "", "InternalIPs of the node, divided by commas")
	flag.DurationVar(&a.period, "period", time.Second, "time from one renewal of the Lease to the next")
	flag.Parse()
	a.addresses = strings.Split(*addresses, ",")

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.Timeout = 5 * time.Second // of a request; watches have their own
	config.QPS = -1
	config.UserAgent = "labkubelet"
	if a.core, err = corev1.NewForConfig(config); err != nil {
		return err
	}
	if a.coordination, err = coordinationv1.NewForConfig(config); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	return a.run(ctx)
}
