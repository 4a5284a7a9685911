package ccm

import (
	"context"
	"fmt"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/controllers/service"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
)

// startServiceController starts cloud-provider's service controller as its own constructor would, except for the
// Service informer: this one can wake a Service.
func startServiceController(init app.ControllerInitContext, config *cloudconfig.CompletedConfig, cloud cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, manager controllermanager.ControllerContext) (controller.Interface, bool, error) {
		c := cloud.(*Cloud)
		if c.settings.OnlyClass {
			return nil, false, nil
		}
		s, err := service.New(
			c,
			filteredClient{config.ClientBuilder.ClientOrDie(init.ClientName)},
			c.requeuer,
			config.SharedInformers.Core().V1().Nodes(),
			config.ComponentConfig.KubeCloudShared.ClusterName,
			utilfeature.DefaultFeatureGate,
		)
		if err != nil {
			return nil, false, fmt.Errorf("starting the service controller: %w", err)
		}
		workers := int(config.ComponentConfig.ServiceController.ConcurrentServiceSyncs)
		go s.Run(filteredLog(ctx), workers, manager.ControllerManagerMetrics)
		return nil, true, nil
	}
}
