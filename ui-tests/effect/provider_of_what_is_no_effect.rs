use idem_runtime::outbox::{Call, Delivery, KeyWindow, Provider};

struct EmailReceipt;

struct Mailer;

#[async_trait::async_trait]
impl Provider<EmailReceipt> for Mailer {
    fn key_window(&self) -> KeyWindow {
        KeyWindow::Forever
    }

    async fn deliver(&self, _: &EmailReceipt, _: &Call) -> Delivery {
        Delivery::Delivered { reference: None }
    }
}

fn main() {}
